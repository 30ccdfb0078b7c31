# cython: language_level=3
"""From the compiled rows into librdkafka's queue, without a Python object for each record.

confluent-kafka's producer stays what it is: it connects, fences, begins, commits, and says what went wrong. Only the
usual row goes past its `produce`, which makes a record of five Python objects and takes the interpreter's lock once
more for each delivery. What this asks of librdkafka is public and documented (rdkafka.h): the handle of a producer is
given to a plugin by `on_new`, this very module being the plugin; records are handed over by `rd_kafka_producev`.

A record that is not taken (no room, too large, a broken producer) goes the ordinary way, which knows what to do.
"""

from cpython.unicode cimport PyUnicode_AsUTF8

from cython cimport no_gc_clear

import threading
from pathlib import Path

import confluent_kafka

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

ctypedef int (*OnNew)(void *rk, const void *conf, void *opaque, char *error, size_t error_size) noexcept nogil
ctypedef int (*AddOnNew)(void *conf, const char *name, OnNew on_new, void *opaque) noexcept nogil
ctypedef int (*ProduceV)(void *rk, ...) noexcept nogil
ctypedef void *(*TopicNew)(void *rk, const char *name, void *conf) noexcept nogil
ctypedef void (*TopicDestroy)(void *handle) noexcept nogil

cdef AddOnNew add_on_new = NULL
cdef ProduceV producev = NULL
cdef TopicNew topic_new = NULL
cdef TopicDestroy topic_destroy = NULL

# The producer that is being made; `_making` is held meanwhile.
cdef void *newest = NULL
_making = threading.Lock()


cdef public int conf_init(void *conf, void **opaque, char *error, size_t error_size) noexcept nogil:
    """librdkafka calls this by its name when a producer is configured with this plugin."""
    return add_on_new(conf, b"tailrace", remember_newest, NULL)


cdef int remember_newest(void *rk, const void *conf, void *opaque, char *error, size_t error_size) noexcept nogil:
    global newest
    newest = rk
    return NO_ERROR


def is_available():
    """Whether the librdkafka of confluent-kafka is found; without it records go the ordinary way."""
    return producev != NULL


def make_outlet(make_producer, note_topic, send, Py_ssize_t largest_record):
    """The producer, made by `make_producer` with the plugin's path, and its outlet. See `outlet.open_producer`."""
    global newest
    cdef Outlet outlet
    with _making:
        newest = NULL
        producer = make_producer(__file__)
        if newest == NULL:
            raise RuntimeError("librdkafka has not told its plugin of the new producer")
        outlet = Outlet()
        outlet.rk = newest
        newest = NULL
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

    def __dealloc__(self):
        for address in self.handles.values():
            topic_destroy(<void *><size_t>address)

    def __call__(self, str topic, bytes key, value, list headers, int partition=-1):
        self.send(topic, key, value, headers, partition)

    @property
    def emit(self):
        return self

    def begin_anew(self):
        """After a commit."""
        self.topic = ""
        self.count = self.sent_bytes = 0

    cdef int choose(self, str topic) except -1:
        """The records of a table come in runs: its handle is looked for once in a run."""
        self.note_topic(topic)
        address = self.handles.get(topic)
        if address is None:
            address = <size_t>topic_new(self.rk, PyUnicode_AsUTF8(topic), NULL)
            if address == 0:
                return 0  # the ordinary way says why
            self.handles[topic] = address
        self.handle = <void *><size_t>address
        self.topic = topic
        return 1

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
    """The one that confluent-kafka has loaded: inside its wheel, or the system's."""
    global add_on_new, producev, topic_new, topic_destroy
    cdef void *library
    package = Path(confluent_kafka.__file__).parent
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    for name in [*map(str, sorted(bundled)), "librdkafka.so.1", "librdkafka.1.dylib"]:
        library = dlopen(name.encode(), RTLD_NOW | RTLD_NOLOAD)
        if library == NULL:
            continue
        add_on_new = <AddOnNew>dlsym(library, b"rd_kafka_conf_interceptor_add_on_new")
        topic_new = <TopicNew>dlsym(library, b"rd_kafka_topic_new")
        topic_destroy = <TopicDestroy>dlsym(library, b"rd_kafka_topic_destroy")
        if add_on_new != NULL and topic_new != NULL and topic_destroy != NULL:
            producev = <ProduceV>dlsym(library, b"rd_kafka_producev")
            return


_find_librdkafka()
