"""Version pins are in one file, and no other file contradicts it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cdc.errors import UsageError
from deploy import versions
from deploy.check_python import complaint
from deploy.stack.images import images
from deploy.stack.servers.postgres import binaries

COMPOSE = (Path(versions.__file__).parent / "compose.yaml").read_text()


def service(name: str) -> str:
    """The part of compose.yaml that describes one server."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert found
    return found.group(1)


@pytest.mark.parametrize("name", ["postgres", "kafka", "elasticsearch", "redis"])
def test_compose_runs_the_same_images_with_the_same_settings(name: str) -> None:
    """compose.yaml and the container stack give the same servers."""
    image = images(versions.POSTGRES_DEFAULT_MAJOR, {}, kafka_port=9092)[name]
    text = service(name)
    assert f"image: {image.name}\n" in text
    assert f'"127.0.0.1:{image.port}:{image.port}"' in text
    assert f":{image.data}" in text
    for key, value in image.environ.items():
        assert re.search(rf'^      {re.escape(key)}: "?{re.escape(value)}"?$', text, re.MULTILINE), key
    for word in image.command:
        assert f'"{word}"' in text or f"- {word}\n" in text, word


def test_every_platform_has_binaries_for_every_major() -> None:
    """Majors 14 to 18 can be chosen on Linux and macOS, on both kinds of processor."""
    assert set(versions.POSTGRES) == {14, 15, 16, 17, 18}
    for system, machine in versions.POSTGRES_PLATFORMS:
        for major in versions.POSTGRES:
            assert binaries(major, system, machine).version.startswith(f"{major}.")


def test_a_platform_without_binaries_is_told_what_to_do() -> None:
    """One line with the remedy, not a failed download."""
    with pytest.raises(UsageError, match=r"no Postgres binaries for Plan9 on mips.*Docker"):
        binaries(18, "Plan9", "mips")


def test_an_old_python_is_told_so() -> None:
    """One line that names the version needed, the one found and a remedy; silence where it is new enough."""
    line = complaint((3, 9))
    assert line
    assert "3.10" in line
    assert "3.9" in line
    assert "nstall" in line
    assert "\n" not in line
    assert complaint((3, 10)) is None
    assert complaint((4, 0)) is None
