#!/usr/bin/env bash
# Sees to it that there is a Chromium: the machine's own, from its package manager. Nothing else is downloaded.
set -euo pipefail
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$name" > /dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  echo "Installing chromium for the tests of the dashboard."
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null
else
  echo "The tests of the dashboard need a Chromium. Install one, then run this again:" >&2
  echo "  sudo apt-get install chromium      (Debian, Ubuntu)" >&2
  echo "  brew install --cask chromium       (macOS)" >&2
  exit 1
fi
