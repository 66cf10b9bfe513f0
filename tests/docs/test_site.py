"""The pages that the site adds to docs/, and in `make test-full` the site itself, in Chromium and
from its files: its search, its links, and that nothing is cut off and nothing comes from elsewhere.
"""

import re
import shlex
import sys
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import pytest
import relpos

from tests import FULL, ROOT
from tests.support.cli_tool import output, ran

SITE = ROOT / "build/site"
full = pytest.mark.skipif(not FULL, reason="a minute: in `make test-full`")
SCHEMES = sorted(scheme.name for scheme in relpos.schemes())


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """What Sphinx is given."""
    pages = tmp_path_factory.mktemp("site") / "pages"
    ran([sys.executable, ROOT / "scripts/stage_site.py", pages], seconds=120)
    return pages


def test_each_scheme_has_its_page(staged):
    assert sorted(path.stem for path in (staged / "schemes").glob("*.md")) == SCHEMES
    sections = ["Formula", "Use", "Options", "Parameters", "Names in checkpoints", "In other code"]
    sections += ["Cost", "Test"]
    for name in SCHEMES:
        text = (staged / f"schemes/{name}.md").read_text()
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == sections, name
        assert (staged / f"schemes/{name}.svg").read_text().startswith("<svg"), name
        parts = re.split(r"^## .*$", text, flags=re.MULTILINE)
        assert all(part.strip() for part in parts), name


def test_the_examples_of_each_page_run(staged, capsys):
    """The others of its blocks are tests/oracles."""
    for name in SCHEMES:
        use = text_of(staged, name).partition("## Use\n")[2].partition("\n## ")[0]
        found = re.findall(r"^```(\w+)\n(.*?)```", use, re.M | re.S)
        (_, code), (_, command) = found
        assert [language for language, _ in found] == ["python", "sh"]
        exec(compile(code, name, "exec"), {})
        assert name in capsys.readouterr().out
        assert output(*shlex.split(command)[1:])


def text_of(staged, name):
    return (staged / f"schemes/{name}.md").read_text()


def test_costs_are_those_of_the_benchmarks(staged):
    rows = (ROOT / "docs/benchmarks.md").read_text()
    for name in SCHEMES:
        measured = re.findall(rf"^\| {name}, .* \| ([\d.]+) x of plain", rows, re.MULTILINE)
        cost = text_of(staged, name).partition("## Cost\n")[2].partition("## Test")[0]
        shown = re.findall(r"^\| (?!case|---)[^|]* \| ([\d.]+) \|", cost, re.MULTILINE)
        assert shown == measured, name


def test_every_page_of_docs_is_in_the_navigation(staged):
    index = (staged / "index.md").read_text()
    for page in staged.glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE), page.name


# ---- the site


@pytest.fixture(scope="module")
def site():
    ran([ROOT / "scripts/docs.sh"], seconds=600)
    return SITE


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")  # no network
    driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


class Found(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loaded = {""}, [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.update(given[key] for key in ("id", "name") if given.get(key))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        for key in ("src", "data", "href", "action"):
            if tag != "a" and given.get(key):
                self.loaded.append(given[key])


@cache
def read(path):
    found = Found()
    found.feed(path.read_text())
    return found


@full
def test_no_link_is_dead_and_nothing_comes_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(SCHEMES) + 20
    for page in pages:
        for link in read(page).links:
            path, anchor = urldefrag(link)
            if re.match(r"https?:|mailto:", path):
                continue
            other = (page.parent / unquote(path)).resolve() if path else page
            assert other.exists(), f"{page.relative_to(site)}: {link}"
            if anchor and other.suffix == ".html":
                assert unquote(anchor) in read(other).ids, f"{page.relative_to(site)}: {link}"
        for address in read(page).loaded:
            assert not re.match(r"\w+:|//", address), f"{page.relative_to(site)}: {address}"
            path = (page.parent / unquote(urldefrag(address)[0].partition("?")[0])).resolve()
            assert path.exists(), f"{page.relative_to(site)}: {address}"
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text()), style


@full
@pytest.mark.parametrize("name", ["kerple_log", "rope_yarn", "t5", "Shaw"])
def test_search_finds_a_scheme_without_a_network(site, browser, name):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get((site / "index.html").as_uri())
    box = browser.find_element(By.CSS_SELECTOR, "input[name=q]")
    box.send_keys(name, Keys.ENTER)
    wait = WebDriverWait(browser, 60)
    wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results p.search-summary"))
    assert browser.current_url.startswith("file://")
    links = browser.find_elements(By.CSS_SELECTOR, "#search-results li a")[:2]
    page = (site / f"schemes/{name.lower()}.html").as_uri()
    target = next(link for link in links if urldefrag(link.get_attribute("href"))[0] == page)
    target.click()
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith(name.lower())


# Boxes that lie beyond the page, or in a box that hides what does not fit; what scrolls is reached.
CUT_OFF = """
const wide = document.documentElement.clientWidth, found = [];
if (document.documentElement.scrollWidth > wide) found.push("the page scrolls sideways");
for (const box of document.querySelectorAll("article, article *, .sidebar-tree a, .toc-tree a")) {
  const at = box.getBoundingClientRect();
  if (!at.width || !box.checkVisibility()) continue;
  let scrolls = false, within = true;
  for (let up = box; up && up !== document.body; up = up.parentElement) {
    const style = getComputedStyle(up);
    if (/auto|scroll/.test(style.overflowX)) scrolls = true;
    if (up.matches(".headerlink, .sidebar-drawer, .toc-drawer, button")) within = false;
  }
  if (!within) continue;
  const style = getComputedStyle(box);
  const hides = /hidden|clip/.test(style.overflowX) && box.scrollWidth > box.clientWidth + 1;
  if (hides || (!scrolls && (at.right > wide + 1 || at.left < -1)))
    found.push(box.tagName + "." + box.className + ": " + box.textContent.slice(0, 40));
}
const foreign = performance.getEntriesByType("resource").filter(r => !r.name.startsWith("file:"));
return found.slice(0, 5).concat(foreign.map(r => "loaded " + r.name));
"""


@full
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_cut_off(site, browser, width):
    """Of every page; light and dark differ in colours alone."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wrong = {}
    for page in sorted(site.rglob("*.html")):
        browser.get(page.as_uri())
        found = browser.execute_script(CUT_OFF)
        if found:
            wrong[str(page.relative_to(site))] = found
    assert not wrong
