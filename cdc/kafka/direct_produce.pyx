# cython: language_level=3
"""From the compiled rows into librdkafka's queue, without a Python object for each record.

confluent-kafka's producer stays what it is: it connects, fences, begins, commits, and says what went wrong. Only the
usual row goes past its `produce`, which makes a record of five Python objects and takes the interpreter's lock once
more for each delivery. What this asks of librdkafka is public and documented (rdkafka.h): the handle of a producer is
given to a plugin by `on_new`, this very module being the plugin; records are handed over by `rd_kafka_producev`.

A record that is not taken (no room, too large, a broken producer) goes the ordinary way, which knows what to do. One that
was taken and could not be delivered breaks the transaction; why, `failure` says.
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
    # rd_kafka_vtype_t: what follows in the arguments of rd_kafka_producev.
    END = 0
    TOPIC_HANDLE = 2
    PARTITION = 3
    VALUE = 4
    KEY = 5
    FLAGS = 7
    HEADER = 9

    COPY = 2  # RD_KAFKA_MSG_F_COPY: our buffers are reused for the next row
    BY_KEY = -1  # the partitioner chooses
    NO_ERROR = 0
    FAILED = -196  # RD_KAFKA_RESP_ERR__FAIL
    PURGED_IN_QUEUE = -152  # by ourselves, as the next two
    PURGED_IN_FLIGHT = -151
    DESTROYED = -197

cdef struct Message:
    int error  # rd_kafka_message_t begins with it

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

# The producer that is being made, and where its first failure will stand; `_making` is held meanwhile.
cdef void *newest = NULL
cdef int *newest_failure = NULL
_making = threading.Lock()


cdef public int conf_init(void *conf, void **opaque, char *error, size_t error_size) noexcept nogil:
    """librdkafka calls this by its name when a producer is configured with this plugin."""
    return FAILED if add_on_new == NULL else add_on_new(conf, b"tailrace", remember_newest, NULL)


cdef int remember_newest(void *rk, const void *conf, void *opaque, char *error, size_t error_size) noexcept nogil:
    global newest, newest_failure
    # Never freed: of records that are still queued when a producer is destroyed one hears even after `on_destroy`.
    cdef int *failure = <int *>calloc(1, sizeof(int))
    if failure == NULL:
        return FAILED
    newest = rk
    newest_failure = failure
    return add_on_acknowledgement(rk, b"tailrace", remember_failure, failure)


cdef int remember_failure(void *rk, Message *message, void *opaque) noexcept nogil:
    """Once for each record of the producer, whichever way it came; by whichever thread has the answer."""
    cdef int *failure = <int *>opaque
    if message.error not in (NO_ERROR, PURGED_IN_QUEUE, PURGED_IN_FLIGHT, DESTROYED) and failure[0] == NO_ERROR:
        failure[0] = message.error
    return NO_ERROR


def make_outlet(make_producer, note_topic, send, Py_ssize_t largest_record):
    """The producer, made by `make_producer` with the plugin's path, and its outlet. See `outlet.open_producer`."""
    global newest
    cdef Outlet outlet
    _find_librdkafka()
    with _making:
        newest = NULL
        producer = make_producer(__file__)
        if newest == NULL:
            raise RuntimeError("librdkafka has not told its plugin of the new producer")
        outlet = Outlet()
        outlet.rk = newest
        outlet.first_failure = newest_failure
    outlet.producer = producer
    outlet.note_topic = note_topic
    outlet.send = send
    outlet.largest_record = largest_record
    return producer, outlet


@no_gc_clear  # so that the producer is there until the handles of its topics are given back
cdef class Outlet:
    """One producer's. Called like `Publisher.send`, it is that; `native_rows` offers its rows to it instead."""

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
        """The error code of the first record that could not be delivered, or 0."""
        return NO_ERROR if self.first_failure == NULL else self.first_failure[0]

    def begin_anew(self):
        """After a commit."""
        self.topic = ""
        self.count = self.sent_bytes = 0

    def watch(self, frozenset topics not None):
        """Every record of these topics goes by `send`, from the next one on."""
        self.watched = topics
        self.topic = ""

    def send_rows(self, str topic not None, rows, bytes version not None):
        """A record for each (key, event) of rows of one version."""
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
        """The records of a table come in runs: its handle is looked for once in a run. 0: the ordinary way says why."""
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
        """To those that are given back in the end, for which there must be no Python object left by then."""
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
        """Whether it was taken. Its one header, the version, is within what `largest_record` leaves for overhead."""
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
    """In the library that confluent-kafka itself calls, wherever that is: its extension module leads to it."""
    global add_on_new, add_on_acknowledgement, producev, topic_new, topic_destroy
    cdef void *library
    if producev != NULL:
        return
    from confluent_kafka import cimpl  # not before it is needed: rows are compiled without it too

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
