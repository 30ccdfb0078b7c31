"""The topic and the record of a user's logical message.

Any role may send messages, so the number of their topics is limited.
"""

from __future__ import annotations

import re

from cdc.capture.events.numbering import MessageNumber
from cdc.config import Config
from cdc.kafka.record import MESSAGE_HEADER, Record
from cdc.logs import Seldom, get_logger
from cdc.names import message_topic, other_messages_topic
from cdc.pgoutput.messages import LogicalMessage
from cdc.positions.progress import Progress

log = get_logger("capture")


class MessageTopics:
    """Maps names of logical messages to topics, by `[source] message_names` and `message_topics`."""

    def __init__(self, config: Config) -> None:
        self._prefix = config.kafka.prefix
        self._limit = config.source.message_topics
        names = config.source.message_names
        self._named = frozenset(name for name in names if "*" not in name)
        self._patterns = [_compiled(name) for name in names if "*" in name]
        self._takes_any = not names
        self._other = other_messages_topic(self._prefix)
        self._seldom = Seldom(log)
        self._is_off = not config.source.messages
        self._own = {self._other, *(message_topic(self._prefix, name) for name in self._named)}
        self._counted: dict[str, str] = {}
        self._found = 0

    def topic_for(self, name: str, progress: Progress) -> str | None:
        """Return the topic for messages of this name. None: capture does not publish them."""
        if self._is_off:
            return None
        if not (self._takes_any or name in self._named or any(each.fullmatch(name) for each in self._patterns)):
            self._seldom.warning(
                "message_not_published", name=name, reason="[source] message_names does not match this name"
            )
            return None
        topic = message_topic(self._prefix, name)
        if topic in progress.topic_ids or name in self._named or self._count(progress) < self._limit:
            return topic
        self._seldom.warning(
            "message_without_own_topic",
            name=name,
            topic=self._other,
            reason=f"[source] message_topics allows {self._limit} topics, and so many exist already",
            remedy="Add the name to [source] message_names, or raise message_topics.",
        )
        return self._other

    def is_shared(self, topic: str) -> bool:
        """Whether messages of several names share this topic."""
        return topic == self._other

    def _count(self, progress: Progress) -> int:
        """Count the message topics whose names the config does not list literally."""
        if progress.topic_ids is not self._counted:
            others = progress.topic_ids.keys() - progress.end_offsets.keys() - self._own
            self._counted, self._found = progress.topic_ids, len(others)
        return self._found


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a name pattern: `*` matches any text, all other characters match themselves."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def message_record(message: LogicalMessage, topic: str, number: MessageNumber, *, is_shared: bool = False) -> Record:
    """Return the record of a logical message.

    `is_shared`: messages with other names use the same topic, so a header carries the name.
    """
    key = b'{"position":%d,"message":%d}' % (number.position, number.number)
    headers = [
        ("v", b"%016x.%08x" % (number.position, number.seq)),
        (MESSAGE_HEADER, b"true" if message.transactional else b"false"),
        ("lsn", b"%d" % message.lsn),
    ]
    if is_shared:
        headers.append(("name", message.prefix.encode()))
    return Record(topic, key, message.content, headers, 0)
