# cython: language_level=3
"""Declares the parts of `direct_produce` that the compiled row encoder uses."""


cdef class RowSender:
    cdef object producer
    cdef void *rk
    cdef int *first_failure
    cdef object note_topic
    cdef object send
    cdef Py_ssize_t largest_record
    cdef dict handles  # topic -> its index in `made`
    cdef void **made
    cdef Py_ssize_t made_count
    cdef str topic
    cdef frozenset watched  # topics whose records all go through `send`
    cdef void *handle
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t sent_bytes
    cdef int choose(self, str topic) except -1
    cdef bint add_handle(self, const char *topic)
    cdef bint offer(
        self,
        str topic,
        const char *key,
        Py_ssize_t key_size,
        const char *value,
        Py_ssize_t value_size,
        const char *version,
        Py_ssize_t version_size,
    ) except -1
