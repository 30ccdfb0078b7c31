"""The names in the code: module names use known words, and no two public classes or functions share a name.

A new word in a module name is either in docs/reference/glossary.md, or added to `_OTHER_WORDS` here, which is for words
that every engineer of the field knows.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.harness.processes.process import ROOT

_PACKAGES = ("cdc", "sinks", "spark_jobs", "deploy")
_GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
# Entry points of processes. `main` is their usual name.
_ENTRY_POINTS = {"main"}

# One comment per group. The words of a group are in alphabetical order.
_OTHER_WORDS = """
    # Products, languages, protocols and file formats.
    cdc elasticsearch iceberg java json kafka openapi opensearch postgres python redis spark sql tls toml
    # Databases.
    catalog columns connection content contents dsn index lock locked query role scan schema
    schemas scripts statements transactions types typed
    # Kafka and streams.
    broker consumer delivery producer stream writer
    # Spark and batch jobs.
    bulk driver evaluation jobs load task tasks
    # Formats and encodings.
    arrays builtin compiler decoder encoder encoders encoding mapping native pages raw scalars
    text times values
    # Processes, threads and servers.
    allocator artifacts backoff child client clients containers daemon host images launch main output
    parent pause poller ports process program queue registry run server servers services signals stop
    supervisor thread transport wait waiting worker
    # Command line, configuration and logs.
    cli commands config errors interpolation line log logs options prompt setup terminal wiring
    # Monitoring, security and the web.
    access account actions admin alert alerts checks clock conditions dashboard guard health journal meter
    metrics monitoring observe observer secrets signed status trends view watch web
    # General words.
    all analysis announced any apply arrow attempt blocks build builder by check choices comparison completeness
    computed continuation contract counts data delete deploy description details difference differences direct
    documents due ends facts failures fetch file findings first folder frame folders follower handover highest init
    kinds known latest library local loop maintain maintenance managed model name names naming notes numbering
    numbers open operate overview parking part parts pass past per pieces plan planning plans present private produce
    public published publisher publishing range read reader recorded recover removable removal remove
    repair replay report request requests resolver rest results retry rules runs sampled sampling
    search shaped side small start startup state steps summary survey switch tail testing totals units visible writing
"""


def _modules() -> list[Path]:
    """The product's modules, in Python and in Cython."""
    return [file for package in _PACKAGES for file in (ROOT / package).rglob("*.py*") if file.suffix in (".py", ".pyx")]


def _singular(word: str) -> str:
    return re.sub(r"(?<=ch)es$|(?<!s)s$", "", re.sub("ies$", "y", word))


def _glossary_words() -> set[str]:
    terms = re.findall(r"^\| \*\*(.+?)\*\*", _GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    return {_singular(word) for term in terms for word in re.findall(r"[a-z]+", term.lower())}


def _general_words() -> set[str]:
    lines = [line for line in _OTHER_WORDS.splitlines() if "#" not in line]
    return {_singular(word) for word in " ".join(lines).split()}


def _words_of_modules() -> dict[str, str]:
    """Each word of a module's or a package's name, with one module that has it in its path."""
    found = {}
    for file in _modules():
        path = file.relative_to(ROOT)
        for part in path.with_suffix("").parts:
            if not part.startswith("__"):
                found.update(dict.fromkeys(part.split("_"), str(path)))
    return found


def test_module_names_use_words_of_the_glossary_or_of_the_field() -> None:
    """A reader knows what a module's name means, or finds each of its words in the glossary."""
    known = _glossary_words() | _general_words()
    unknown = {word: path for word, path in _words_of_modules().items() if _singular(word) not in known}
    assert not unknown, "use a known word, or define this one in docs/reference/glossary.md"


def test_no_two_public_classes_or_functions_share_a_name() -> None:
    """A public name at the top level of a module stands for one thing in the whole product."""
    places = defaultdict(list)
    for file in _modules():
        if file.suffix != ".py":  # a compiled module repeats the interface of the Python module that it replaces
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(ROOT)))
    shared = {name: files for name, files in places.items() if len(files) > 1 and name not in _ENTRY_POINTS}
    assert not shared
