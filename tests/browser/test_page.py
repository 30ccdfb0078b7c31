"""The page in a real Chromium: every scene understood, live, kept over a restart, on a phone, by keyboard, in peace."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cdc.monitoring.web.actions import Actions, DashboardAction
from tests.browser.visit import PHONE, visiting
from tests.harness.dashboard.page_server import serving
from tests.harness.dashboard.sample_statuses import (
    SCENES,
    bootstrap_under_way,
    busy,
    fill_history,
    idle,
    shop_config,
    store_down,
)

TOKEN = "a-token-of-tests-0123"
_TOKEN_SECTION = f'\n[dashboard]\ntoken = "{TOKEN}"\n'
_VERDICTS = {
    "idle": "All is well",
    "busy": "All is well",
    "store-down": "cache is down",
    "slot-nearly-lost": "Capture is down",
    "bootstrap": "warehouse is being built",
    "row-parked": "Capture has parked rows",
}
_OVERFLOWS = "document.scrollingElement.scrollWidth > window.innerWidth"


class Recorded(Actions):
    """Notes what it is asked for, and does nothing."""

    asked: list[tuple[str, str]]

    def do(self, kind: str, store: str) -> DashboardAction:
        self.asked = [*getattr(self, "asked", []), (kind, store)]
        return DashboardAction(number=len(self.asked), kind=kind, store=store, began=0.0)


@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_is_understood_on_a_desk_in_the_dark_and_on_a_phone(
    chromium: Browser, folder: Path, scene: str
) -> None:
    """Each scene has one sentence, nothing is cut off, the console is empty, and no other host gets a request."""
    config = shop_config(folder)
    record = SCENES[scene](config)
    with serving(config, record) as server:
        fill_history(server.watch.history, record)
        for settings in ({}, {"dark": True, "size": PHONE}):
            with visiting(chromium, server.url, **settings) as visit:  # type: ignore[arg-type]
                page = visit.open(server.url)
                expect(page.get_by_role("heading", level=1)).to_have_text(_VERDICTS[scene])
                expect(page.locator("#hops > li, #store-hops > li")).to_have_count(6)
                expect(page.locator("#live-text")).to_have_text("live")
                assert not page.evaluate(_OVERFLOWS), f"{scene} is wider than the screen"
                assert visit.errors == []


def test_it_is_live_without_a_reload(chromium: Browser, folder: Path) -> None:
    """A store goes down and comes back: the page says so by itself, with what to do, and remembers it."""
    config = shop_config(folder, "\n[lag]\ninterval_seconds = 0.5\n")
    with serving(config, busy(config)) as server, visiting(chromium, server.url) as visit:
        page = visit.open(server.url)
        card = page.get_by_role("article", name="Store cache")
        expect(card.locator(".pill")).to_have_text("ok")
        server.shown.record = store_down(config)
        expect(page.get_by_role("heading", level=1)).to_have_text("cache is down")
        expect(page.locator("#verdict-remedy")).to_contain_text("Start the store")
        expect(card.locator(".pill")).to_have_text("down")
        expect(card).to_contain_text("6 min 12 s")
        server.shown.record = busy(config)
        expect(page.get_by_role("heading", level=1)).to_have_text("All is well")
        expect(page.locator("#journal")).to_contain_text("ended")
        assert visit.errors == []


def test_charts_survive_a_reload_and_a_restart(chromium: Browser, folder: Path) -> None:
    """An hour of history is there again, from another process's file."""
    config = shop_config(folder)
    with serving(config, busy(config)) as server:
        fill_history(server.watch.history, busy(config))
    with serving(config, busy(config)) as server, visiting(chromium, server.url) as visit:
        page = visit.open(server.url)
        page.reload()
        page.wait_for_selector("#chart-rate path.line", state="attached")
        assert page.locator("#chart-rate path.line").count() >= 4
        width = page.evaluate("document.querySelector('#chart-rate path.line.c1').getBBox().width")
        assert width > 150, "the line does not span the chart"
        page.get_by_role("button", name="15 min").click()
        expect(page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
        assert visit.errors == []


def test_bootstraps_copies_and_incomplete_tables_are_shown(chromium: Browser, folder: Path) -> None:
    """With how far they are."""
    config = shop_config(folder)
    with serving(config, bootstrap_under_way(config)) as server, visiting(chromium, server.url) as visit:
        page = visit.open(server.url)
        expect(page.locator("#work")).to_contain_text("Bootstrap of search, generation 4")
        expect(page.locator("#work")).to_contain_text("71 %, 1,930,000 of 2,704,000 records, 38 s left")
        expect(page.locator("#work")).to_contain_text("31 %, 412,000 rows")
        expect(page.locator("#tables")).to_contain_text("incomplete: column price changed its type")


def test_it_can_be_used_with_the_keyboard_alone_and_read_aloud(chromium: Browser, folder: Path) -> None:
    """Everything that can be done is reached by Tab, has a name, and shows where one is; charts can be read off."""
    config = shop_config(folder, _TOKEN_SECTION)
    record = store_down(config)
    with serving(config, record, Recorded(config)) as server:
        fill_history(server.watch.history, record)
        with visiting(chromium, server.url, token=TOKEN) as visit:
            page = visit.open(server.url)
            names = _tabbed(page, 40)
            assert {"Skip to the pipeline", "1 h", "Pause", "Audit", "Retry parked", "/metrics"} <= set(names)
            assert "" not in names
            page.locator("#chart-lag svg[role=img]").focus()
            page.keyboard.press("ArrowLeft")
            expect(page.locator("#chart-lag .tip")).to_contain_text("warehouse")
            assert "cache" in (page.locator("#chart-lag svg[role=img]").get_attribute("aria-label") or "")
            levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((each) => each.tagName).join('')")
            assert levels.startswith("H1H2")
            assert levels.count("H1") == 1
            assert page.locator("[aria-live]").count() >= 1


def test_signing_in_acting_and_signing_out(chromium: Browser, folder: Path) -> None:
    """A wrong token does not let in; the right one does, and then the buttons do what they say."""
    config = shop_config(folder, _TOKEN_SECTION)
    actions = Recorded(config)
    with serving(config, store_down(config), actions) as server, visiting(chromium, server.url) as visit:
        page = visit.page
        page.goto(server.url)
        page.get_by_label("Token").fill("not the token, surely")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_label("Token")).to_be_empty()
        visit.errors.clear()  # Chromium's own line about the 401
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        card = page.get_by_role("article", name="Store cache")
        card.get_by_role("button", name="Pause").click()
        expect(page.locator("#acting")).to_have_text("cache: pause requested.")
        card.get_by_role("button", name="Retry parked").click()
        expect(page.locator("#acting")).to_have_text("cache: retry-parked requested.")
        assert actions.asked == [("pause", "cache"), ("retry-parked", "cache")]
        assert TOKEN not in page.content()
        assert TOKEN not in page.url
        assert visit.errors == []
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()


def test_without_a_token_nothing_can_be_pressed(chromium: Browser, folder: Path) -> None:
    """And it is said why."""
    config = shop_config(folder)
    with serving(config, idle(config)) as server, visiting(chromium, server.url) as visit:
        button = visit.open(server.url).get_by_role("article", name="Store search").get_by_role("button", name="Pause")
        expect(button).to_be_disabled()
        assert "token" in (button.get_attribute("title") or "")


def _tabbed(page: Page, presses: int) -> list[str]:
    """The names of what Tab reaches, in order."""
    names: list[str] = []
    for _ in range(presses):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "() => { const at = document.activeElement; return at === document.body ? null :"
            " at.getAttribute('aria-label') || at.textContent.trim() || at.getAttribute('aria-labelledby') || '' }"
        )
        if found is not None:
            names.append(found)
    return names
