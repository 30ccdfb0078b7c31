"""How Tailrace is run: version pins, artifacts from package registries, the local stack of real servers."""

from deploy.check_python import check_python

check_python()
