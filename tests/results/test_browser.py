"""The report in a real browser: it renders, light and dark, wide and narrow, with no error and nothing fetched."""

import base64
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dpmcmc.results import Posterior, Spend, html_report
from tests.results.cases import FLAGGED, STATEMENTS, fitted, make_posterior, make_quality

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="NO CHROMIUM: the report is not tested in a browser; install it with `sh tests/system_packages.sh`",
    )
]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PHONE, DESK = 390, 1200
COURSE = (Spend("invalid_count", 1, 0.02), Spend("gradient", 40, 0.5), Spend("steps 1 to 40", 160, 0.9))
LEDGER = {
    "name": "clinic",
    "run": 2,
    "total_epsilon": 4.0,
    "total_delta": 1e-5,
    "mu_total": 0.35,
    "mu_before": 0.1,
    "mu_after": 0.2,
    "apart_epsilon_before": 0.0,
    "apart_delta_before": 0.0,
    "apart_epsilon_after": 0.1,
    "apart_delta_after": 1e-7,
    "left_epsilon": 2.5,
    "left_delta": 1e-5,
    "head": "0a" * 32,
}


def many():
    rng = np.random.default_rng(5)
    names = [f"C(education)[T.Some-college-or-another-long-level-{place}]:hours_per_week" for place in range(60)]
    return Posterior(
        draws={"coefficients": rng.normal(size=(4, 120, 60)) * np.geomspace(1e-5, 1e4, 60)},
        privacy=replace(STATEMENTS["private"], ledger=LEDGER, adaptive="Nothing."),
        sampler="DP-HMC",
        model="a_model_with_a_name_that_is_very_long_and_has_no_place_to_break_a_line",
        dims={"coefficients": ["feature"]},
        coords={"feature": names},
        spending=COURSE,
    )


PAGES = {
    "chains": lambda: make_posterior("private", spending=COURSE),
    "independent": fitted,
    "flagged": lambda: fitted(make_quality(**FLAGGED)),
    "seeded": lambda: make_posterior("seeded"),
    "noise-free": lambda: make_posterior("noise-free", num_chains=1, num_draws=1),
    "many": many,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    selenium = pytest.importorskip("selenium.webdriver", reason="NO SELENIUM: pip install 'dpmcmc[dev]'")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=list(PAGES))
def page(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html_report(PAGES[request.param]()), encoding="utf-8")
    return request.param, file.as_uri()


def opened(browser, address, *, width=DESK, theme="light", scripts=True):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)


def brightness(colour):
    red, green, blue = (int(part) for part in colour[colour.index("(") + 1 : colour.index(")")].split(",")[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_fits_and_nothing_overlaps_its_edge(browser, page, width):
    opened(browser, page[1], width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wider = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, .track') && "
        f"e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wider == []


def test_no_errors_and_nothing_fetched(browser, page):
    opened(browser, page[1])
    assert browser.get_log("browser") == []
    asked = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert [message for message in asked if '"url":"http' in message] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_follow_the_theme(browser, page, theme):
    opened(browser, page[1], theme=theme)
    paper, ink, label = browser.execute_script(
        "const style = (selector, name) => getComputedStyle(document.querySelector(selector))[name];"
        "return [style('body', 'backgroundColor'), style('body', 'color'), style('.chart text', 'fill')]"
    )
    assert (brightness(paper) > 200) == (theme == "light")
    assert abs(brightness(paper) - brightness(ink)) > 150
    assert abs(brightness(paper) - brightness(label)) > 90


def test_every_figure_is_drawn_and_named(browser, page):
    kind, address = page
    opened(browser, address)
    found = browser.execute_script(
        "return [...document.querySelectorAll('svg.chart')].map(e => [e.getAttribute('role'), "
        "e.getAttribute('aria-label'), e.getBoundingClientRect().width, e.getBoundingClientRect().height])"
    )
    assert all(role == "img" and label and width > 150 and height > 20 for role, label, width, height in found)
    wanted = {"chains": 8 + 16 + 2, "independent": 8 + 1, "flagged": 8 + 1, "seeded": 8 + 16 + 1, "noise-free": 8 + 8}
    assert len(found) == (wanted | {"many": 12 + 24 + 2})[kind]
    assert browser.execute_script("return document.querySelectorAll('figure').length") == browser.execute_script(
        "return document.querySelectorAll('figure > figcaption').length"
    )


def test_words_in_charts_can_be_read_on_a_phone_and_do_not_overlap(browser, page):
    opened(browser, page[1], width=PHONE)
    smallest, overlapping, cut = browser.execute_script(
        """
        let smallest = 99, overlapping = [], cut = [];
        for (const svg of document.querySelectorAll('svg.chart')) {
            const frame = svg.getBoundingClientRect();
            const words = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
            const scale = frame.width / svg.viewBox.baseVal.width;
            if (words.length) smallest = Math.min(smallest, 11.5 * scale);
            for (const [text, box] of words)
                if (box.left < frame.left - 1 || box.right > frame.right + 1) cut.push(text);
            words.forEach(([a, one], i) => words.slice(i + 1).forEach(([b, two]) => {
                const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
                const down = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
                if (across > 1 && down > 5) overlapping.push([a, b]);
            }));
        }
        return [smallest, overlapping, cut]
        """
    )
    assert smallest >= 10.0
    assert overlapping == []
    assert cut == []


def test_headings_come_in_order_and_tables_have_headers(browser, page):
    opened(browser, page[1])
    levels = browser.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4')].map(e => +e.tagName[1])")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.execute_script("return document.documentElement.lang") == "en"
    assert browser.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0


def test_it_looks_the_same_without_scripts(browser, page):
    def picture(scripts):
        opened(browser, page[1], scripts=scripts)
        return base64.b64decode(browser.get_screenshot_as_base64())

    assert picture(True) == picture(False)


def test_a_page_that_is_too_wide_would_be_noticed(browser, tmp_path):
    """The twin."""
    file = tmp_path / "wide.html"
    source = html_report(make_posterior("private")).replace("<footer>", '<p style="width: 2000px">wide</p><footer>')
    file.write_text(source, encoding="utf-8")
    opened(browser, file.as_uri(), width=PHONE)
    assert browser.execute_script("return document.documentElement.scrollWidth") > PHONE
