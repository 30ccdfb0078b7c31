"""Names of settings whose values may be printed. Every other setting that is passed to a library is masked.

A list of secret names is never complete (a header `X-Key`, `fs.azure.account.key…`, `basic.auth.user.info`), so this
module lists the public names. If a public name is missing here, the operator has to open the config file to see its
value. A secret name in this list would reveal the secret.
"""

from __future__ import annotations

import re

_LIBPQ = """
host hostaddr port dbname user service passfile connect_timeout client_encoding application_name
fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
target_session_attrs load_balance_hosts channel_binding require_auth requirepeer gssencmode gsslib gssdelegation
krbsrvname oauth_issuer oauth_client_id oauth_scope
sslmode sslnegotiation sslcompression sslrootcert sslcert sslcertmode sslkey sslcrl sslcrldir sslsni
ssl_min_protocol_version ssl_max_protocol_version
"""
# Parameters of the stores' URLs.
_URL = "db protocol ssl_cert_reqs ssl_ca_certs ssl_certfile ssl_keyfile ssl_check_hostname socket_timeout timeout"
_HEADERS = "accept content-type user-agent"
_LIBRDKAFKA = """
client.id client.rack client.dns.lookup debug log_level log.connection.close statistics.interval.ms api.version.request
broker.address.family broker.address.ttl metadata.max.age.ms topic.metadata.refresh.interval.ms
socket.timeout.ms socket.keepalive.enable socket.nagle.disable socket.connection.setup.timeout.ms
socket.send.buffer.bytes socket.receive.buffer.bytes socket.max.fails connections.max.idle.ms
reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms retries message.send.max.retries
max.in.flight max.in.flight.requests.per.connection enable.sparse.connections
linger.ms queue.buffering.max.ms queue.buffering.max.messages queue.buffering.max.kbytes batch.size
batch.num.messages sticky.partitioning.linger.ms compression.type compression.codec compression.level
message.timeout.ms delivery.timeout.ms request.timeout.ms message.copy.max.bytes receive.message.max.bytes
security.protocol sasl.mechanism sasl.mechanisms sasl.username ssl.ca.location ssl.certificate.location
ssl.key.location ssl.crl.location ssl.cipher.suites ssl.curves.list ssl.sigalgs.list
ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
"""
_SPARK = """
spark.app.name spark.master spark.submit.deploymode spark.jars spark.jars.packages spark.jars.excludes
spark.driver.memory spark.driver.cores spark.driver.memoryoverhead spark.driver.maxresultsize spark.driver.host
spark.driver.port spark.driver.bindaddress spark.driver.extraclasspath
spark.executor.memory spark.executor.cores spark.executor.instances spark.executor.memoryoverhead
spark.executor.extraclasspath spark.cores.max spark.task.cpus spark.task.maxfailures spark.default.parallelism
spark.local.dir spark.serializer spark.network.timeout spark.scheduler.mode spark.pyspark.python
spark.python.worker.reuse spark.ui.enabled spark.ui.port spark.eventlog.enabled spark.sql.extensions
spark.sql.warehouse.dir spark.sql.session.timezone spark.kubernetes.namespace spark.kubernetes.container.image
"""
_SPARK_GROUPS = re.compile(
    r"spark\.(?:dynamicallocation|memory|speculation|locality"
    r"|sql\.(?:adaptive|files|shuffle|streaming|execution|autobroadcastjointhreshold|parquet|iceberg))(?:\.[a-z0-9.]+)?"
)
_ICEBERG = """
type warehouse io-impl py-io-impl catalog-impl scope rest.sigv4-enabled rest.signing-region rest.signing-name
s3.endpoint s3.region s3.path-style-access s3.force-virtual-addressing s3.connect-timeout s3.request-timeout
client.region gcs.project-id gcs.service.host adls.account-name adls.account-host
"""
_ELASTICSEARCH_MAPPING = """
type analyzer search_analyzer search_quote_analyzer normalizer format index index_options doc_values store enabled
ignore_above ignore_malformed coerce scaling_factor dims similarity norms term_vector fielddata eager_global_ordinals
copy_to locale null_value time_series_dimension positive_score_impact split_queries_on_whitespace
"""
_LIBPQ_NAMES = frozenset(_LIBPQ.split())
_URL_NAMES = _LIBPQ_NAMES | frozenset(_URL.split())
# One list for all sections: no name is public in one section and secret in another.
_OPTION_NAMES = frozenset(" ".join((_HEADERS, _LIBRDKAFKA, _SPARK, _ICEBERG, _ELASTICSEARCH_MAPPING)).split())


def is_public_option(name: str) -> bool:
    """Return whether the value of an option may be printed.

    Options are those of `[kafka.options]`, `[spark.options]`, `[alerts.headers]`, a warehouse, and an index's mapping.
    """
    small = name.lower()
    return small in _OPTION_NAMES or _SPARK_GROUPS.fullmatch(small) is not None


def is_public_libpq_parameter(name: str) -> bool:
    """Return whether the value of a parameter of a libpq connection string may be printed."""
    return name.lower() in _LIBPQ_NAMES


def is_public_url_parameter(name: str) -> bool:
    """Return whether the value of a query parameter of a store's or the source's URL may be printed."""
    return name.lower() in _URL_NAMES
