"""Takes the pictures of docs/guides/dashboard.md and the README: `python -m tests.browser.pictures`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.visit import visiting
from tests.harness.dashboard.chromium import find_chromium
from tests.harness.dashboard.page_server import serving
from tests.harness.dashboard.sample_statuses import SCENES, fill_history, shop_config

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
TOKEN = "a-token-of-pictures-0123"
#: Name, scene, dark, size of the window, and what of the page (all that the window shows, unless named).
_TAKEN = (
    ("busy", "busy", False, (1240, 946), None),
    ("idle-dark", "idle", True, (1240, 640), None),
    ("store-down", "store-down", False, (1240, 640), None),
    ("slot-nearly-lost", "slot-nearly-lost", True, (1240, 970), None),
    ("bootstrap", "bootstrap", False, (1240, 900), ".columns"),
    ("phone", "store-down", False, (390, 800), None),
)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for name, scene, dark, (width, height), of in _TAKEN:
            with tempfile.TemporaryDirectory() as folder:
                config = shop_config(Path(folder), f'\n[dashboard]\ntoken = "{TOKEN}"\n')
                record = SCENES[scene](config)
                size = {"width": width, "height": height}
                with (
                    serving(config, record) as server,
                    visiting(browser, server.url, dark=dark, size=size, token=TOKEN) as visit,
                ):
                    fill_history(server.watch.history, record)
                    page = visit.open(server.url)
                    page.wait_for_function("document.querySelector('#chart-rate path.line').getBBox().width > 100")
                    taken = page if of is None else page.locator(of)
                    taken.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
        browser.close()


if __name__ == "__main__":
    main()
