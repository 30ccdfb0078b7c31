# cython: language_level=3
"""Puts compiled rows into librdkafka's queue without creating Python objects for each record.

confluent-kafka's producer still connects, fences, begins, commits and reports errors. Only ordinary rows bypass its
`produce`, which creates five Python objects per record and takes the GIL once more for each delivery. This module uses
only librdkafka's public, documented API (rdkafka.h). It is a librdkafka plugin: librdkafka passes the handle of a new
producer to the plugin's `on_new`, and `rd_kafka_producev` takes the records.

If `offer` does not accept a record (queue full, record too large, producer failed), the caller sends it through
`Publisher.send`, which handles these cases. If the delivery of an accepted record fails, the transaction fails.
`failure` then has the error code.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8
from libc.stdlib cimport calloc, free, realloc

from cython cimport no_gc_clear

import threading

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *name)
    int RTLD_NOW
    int RTLD_NOLOAD

cdef enum:
    # rd_kafka_vtype_t: the type of the next argument of rd_kafka_producev.
    END = 0
    TOPIC_HANDLE = 2
    PARTITION = 3
    VALUE = 4
    KEY = 5
    FLAGS = 7
    HEADER = 9

    COPY = 2  # RD_KAFKA_MSG_F_COPY: we reuse the buffers for the next row
    BY_KEY = -1  # the partitioner chooses
    NO_ERROR = 0
    FAILED = -196  # RD_KAFKA_RESP_ERR__FAIL
    PURGED_IN_QUEUE = -152  # not a failure, like the next two: this process discarded the record
    PURGED_IN_FLIGHT = -151
    DESTROYED = -197

cdef struct Message:
    int error  # the first field of rd_kafka_message_t

ctypedef int (*OnNew)(void *rk, const void *conf, void *opaque, char *error, size_t error_size) noexcept nogil
ctypedef int (*OnAcknowledgement)(void *rk, Message *message, void *opaque) noexcept nogil
ctypedef int (*AddOnNew)(void *conf, const char *name, OnNew call, void *opaque) noexcept nogil
ctypedef int (*AddOnAcknowledgement)(void *rk, const char *name, OnAcknowledgement call, void *opaque) noexcept nogil
ctypedef int (*ProduceV)(void *rk, ...) noexcept nogil
ctypedef void *(*TopicNew)(void *rk, const char *name, void *conf) noexcept nogil
ctypedef void (*TopicDestroy)(void *handle) noexcept nogil

cdef AddOnNew add_on_new = NULL
cdef AddOnAcknowledgement add_on_acknowledgement = NULL
cdef ProduceV producev = NULL
cdef TopicNew topic_new = NULL
cdef TopicDestroy topic_destroy = NULL

# The producer that is being created, and the address for the error code of its first failure. `_making` is their lock.
cdef void *newest = NULL
cdef int *newest_failure = NULL
_making = threading.Lock()


cdef public int conf_init(void *conf, void **opaque, char *error, size_t error_size) noexcept nogil:
    """Register `remember_newest`. librdkafka calls this function by name when a producer's config has this plugin."""
    return FAILED if add_on_new == NULL else add_on_new(conf, b"tailrace", remember_newest, NULL)


cdef int remember_newest(void *rk, const void *conf, void *opaque, char *error, size_t error_size) noexcept nogil:
    global newest, newest_failure
    # Never freed: librdkafka reports records that were queued when a producer was destroyed even after `on_destroy`.
    cdef int *failure = <int *>calloc(1, sizeof(int))
    if failure == NULL:
        return FAILED
    newest = rk
    newest_failure = failure
    return add_on_acknowledgement(rk, b"tailrace", remember_failure, failure)


cdef int remember_failure(void *rk, Message *message, void *opaque) noexcept nogil:
    """Keep the first error code. librdkafka calls this once for every record of the producer, from any thread."""
    cdef int *failure = <int *>opaque
    if message.error not in (NO_ERROR, PURGED_IN_QUEUE, PURGED_IN_FLIGHT, DESTROYED) and failure[0] == NO_ERROR:
        failure[0] = message.error
    return NO_ERROR


def make_outlet(make_producer, note_topic, send, Py_ssize_t largest_record):
    """Return the producer, which `make_producer` creates with the plugin's path, and its outlet.

    See `producer.open_producer`.
    """
    global newest
    cdef RowSender outlet
    _find_librdkafka()
    with _making:
        newest = NULL
        producer = make_producer(__file__)
        if newest == NULL:
            raise RuntimeError("librdkafka has not told its plugin of the new producer")
        outlet = RowSender()
        outlet.rk = newest
        outlet.first_failure = newest_failure
    outlet.producer = producer
    outlet.note_topic = note_topic
    outlet.send = send
    outlet.largest_record = largest_record
    return producer, outlet


@no_gc_clear  # so that the producer exists until __dealloc__ has destroyed its topic handles
cdef class RowSender:
    """The outlet of one producer.

    The compiled row encoder calls `offer`. To call the outlet itself is the same as to call `Publisher.send`.
    """

    def __cinit__(self):
        self.handles = {}
        self.topic = ""
        self.watched = frozenset()

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.made_count):
            topic_destroy(self.made[i])
        free(self.made)

    def __call__(self, str topic, bytes key, value, list headers, int partition=-1):
        self.send(topic, key, value, headers, partition)

    @property
    def emit(self):
        return self

    @property
    def failure(self):
        """The error code of the first record whose delivery failed, or 0."""
        return NO_ERROR if self.first_failure == NULL else self.first_failure[0]

    def reset_counts(self):
        """Reset the counters after a commit."""
        self.topic = ""
        self.count = self.sent_bytes = 0

    def watch(self, frozenset topics not None):
        """Send all further records of these topics through `send`."""
        self.watched = topics
        self.topic = ""

    def send_rows(self, str topic not None, rows, bytes version not None):
        """Send one record for each (key, event). All have the same version."""
        cdef bytes key, event
        for key, event in rows:
            if key is None or event is None:
                raise TypeError("key and event are bytes, not None")
            if not self.offer(
                topic,
                PyBytes_AS_STRING(key),
                PyBytes_GET_SIZE(key),
                PyBytes_AS_STRING(event),
                PyBytes_GET_SIZE(event),
                PyBytes_AS_STRING(version),
                PyBytes_GET_SIZE(version),
            ):
                self.send(topic, key, event, [("v", version)], -1)

    cdef int choose(self, str topic) except -1:
        """Set the topic handle of the next records. Returns 0 if they must go through `send`.

        Consecutive records usually have the same topic, so there is one lookup per run of records.
        """
        if topic in self.watched:
            return 0
        self.note_topic(topic)
        number = self.handles.get(topic)
        if number is None:
            if not self.add_handle(PyUnicode_AsUTF8(topic)):
                return 0
            number = self.handles[topic] = self.made_count - 1
        self.handle = self.made[<Py_ssize_t>number]
        self.topic = topic
        return 1

    cdef bint add_handle(self, const char *topic):
        """Create a topic handle for __dealloc__ to destroy. It is in a C array: Python objects may be gone by then."""
        cdef void **made = <void **>realloc(self.made, (self.made_count + 1) * sizeof(void *))
        cdef void *handle
        if made == NULL:
            return False
        self.made = made
        handle = topic_new(self.rk, topic, NULL)
        if handle == NULL:
            return False
        made[self.made_count] = handle
        self.made_count += 1
        return True

    cdef bint offer(
        self,
        str topic,
        const char *key,
        Py_ssize_t key_size,
        const char *value,
        Py_ssize_t value_size,
        const char *version,
        Py_ssize_t version_size,
    ) except -1:
        """Put a record into the queue. Returns whether librdkafka accepted it.

        The size of its only header, the version, is part of the overhead that `largest_record` allows for.
        """
        if key_size + value_size > self.largest_record:
            return False
        if topic is not self.topic and not self.choose(topic):
            return False
        # fmt: off
        if producev(
            self.rk,
            <int>TOPIC_HANDLE, self.handle,
            <int>PARTITION, <int>BY_KEY,
            <int>FLAGS, <int>COPY,
            <int>KEY, <const void *>key, <size_t>key_size,
            <int>VALUE, <const void *>value, <size_t>value_size,
            <int>HEADER, <const char *>b"v", <const void *>version, version_size,
            <int>END,
        ) != NO_ERROR:
            return False
        # fmt: on
        self.count += 1
        self.sent_bytes += key_size + value_size
        return True


def _find_librdkafka():
    """Find librdkafka's functions in the library that confluent-kafka's extension module has loaded."""
    global add_on_new, add_on_acknowledgement, producev, topic_new, topic_destroy
    cdef void *library
    if producev != NULL:
        return
    from confluent_kafka import cimpl  # imported late: the row encoder also works without it

    library = dlopen(cimpl.__file__.encode(), RTLD_NOW | RTLD_NOLOAD)
    add_on_new = <AddOnNew>_find(library, b"rd_kafka_conf_interceptor_add_on_new")
    add_on_acknowledgement = <AddOnAcknowledgement>_find(library, b"rd_kafka_interceptor_add_on_acknowledgement")
    topic_new = <TopicNew>_find(library, b"rd_kafka_topic_new")
    topic_destroy = <TopicDestroy>_find(library, b"rd_kafka_topic_destroy")
    producev = <ProduceV>_find(library, b"rd_kafka_producev")


cdef void *_find(void *library, const char *name) except NULL:
    cdef void *found = NULL if library == NULL else dlsym(library, name)
    if found == NULL:
        raise RuntimeError(f"{name.decode()} is not to be found in confluent-kafka")
    return found
