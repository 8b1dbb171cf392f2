"""The page at /: the JSON that it reads, published runs, and in the long form the page itself in Chromium."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import banyan as bn
from banyan.runtime import launch
from banyan.runtime.gateway import app
from banyan.runtime.gateway.page import run_pages
from raw_http import post
from waits import wait_until

STATIC = Path(launch.__file__).parent / "gateway" / "page" / "static"


@bn.function
def judge(s: bn.State) -> None:
    s += bn.user("Which tree is the oldest?") + bn.assistant_begin()
    drafts = s.fork(2)
    drafts += bn.gen("draft", max_tokens=4, temperature=0)
    drafts.join("concate_and_append")
    s += bn.gen("verdict", max_tokens=4, temperature=0) + bn.assistant_end()


def get(url: str, key: str = "") -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, headers={"authorization": f"Bearer {key}"}), timeout=30)


def read(url: str, key: str = "") -> Any:
    with get(url, key) as response:
        return json.load(response)


def test_page_needs_nothing_from_elsewhere(url: str) -> None:
    with get(f"{url}/") as response:
        html = response.read().decode()
        policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in re.findall(r'(?:href|src)="(/[^"]+)"', html):
        with get(url + path) as response:
            assert response.read() == (STATIC.parent / path[1:]).read_bytes()
    texts = [path.read_text() for path in STATIC.iterdir()]
    assert not re.findall(r"https?://(?!www.w3.org/2000/svg)", "".join(texts))
    used = set(re.findall(r'get\("([\w-]+)"\)', (STATIC / "page.js").read_text()))
    assert used <= set(re.findall(r'id="([\w-]+)"', html)), "ids that the script uses"


def test_programs_and_tree_say_what_runs_and_who_leases_what(over_socket: bn.RuntimeEndpoint, url: str) -> None:
    read(f"{url}/v1/programs")  # somebody watches from now on
    assert judge.run(backend=over_socket)["verdict"]
    held = bn.function(lambda s: s.__iadd__("One " + bn.gen("long", max_tokens=1900, ignore_eos=True))).run(
        backend=over_socket
    )
    (running,) = wait_until(
        lambda: [one for one in read(f"{url}/v1/programs")["running"] if doing(one) == ["long"]], "it"
    )
    wait_until(
        lambda: any(serial == running["serial"] for node in tree(url) for _, serial in node["owners"]), "an owner"
    )
    held.cancel()
    found = wait_until(
        lambda: [one for one in read(f"{url}/v1/programs")["ended"] if one["name"] == "judge"], "the ended program"
    )
    program = found[0]
    assert [(branch["number"], branch["parent"]) for branch in program["branches"]] == [(0, -1), (1, 0), (2, 0)]
    gens = program["gens"]
    assert sorted((gen["name"], gen["state"]) for gen in gens) == [("draft", 1), ("draft", 2), ("verdict", 0)]
    verdict = next(gen for gen in gens if gen["name"] == "verdict")
    assert verdict["usage"]["generated"] == 4
    assert verdict["usage"]["cached"] > 0
    assert (program["is_over"], program["error"]) == (True, "")


def doing(program: Any) -> list[str]:
    """What each branch of a program does."""
    return [branch["doing"] for branch in program["branches"]]


def tree(url: str) -> Any:
    return read(f"{url}/v1/tree?limit=50")["nodes"]


def test_limit_of_the_tree_is_a_number(url: str) -> None:
    assert len(read(f"{url}/v1/tree?limit=1")["nodes"]) <= 1
    with pytest.raises(urllib.error.HTTPError, match="400"):
        read(f"{url}/v1/tree?limit=-1")


def test_published_run_is_shown_by_its_link_without_rights(url: str) -> None:
    with bn.connect(url) as backend:
        state = judge.run(backend=backend)
        link = backend.publish(state.show())
    with get(link) as response:
        assert "Which tree is the oldest?" in response.read().decode()
        assert response.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert read(f"{url}/v1/pages")["data"][0]["title"] == "judge on pocket"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{url}/pages/{'0' * 32}")


def test_bytes_of_kept_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_pages, "MAX_BYTES", 10)
    pages = run_pages.RunPages()
    for title in "abc":
        pages.add("", title, "é" * 3)
    assert [page.title for page in pages.of("")] == ["c"], "two pages have 12 bytes"
    pages.add("", "d", "e" * 4)
    assert [page.title for page in pages.of("")] == ["d", "c"]


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"host": "evil.example"}, True),
        ({"host": "localhost:1"}, False),
        ({"host": "[::1]:80"}, False),
        ({"host": "127.0.0.1", "origin": "http://127.0.0.1"}, False),
        ({"host": "127.0.0.1", "origin": "http://evil.example"}, True),
        ({"host": "127.0.0.1", "origin": "null"}, True),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], is_refused: bool, url: str) -> None:
    request = urllib.request.Request(f"{url}/v1/stats", headers=headers)
    with pytest.raises(urllib.error.HTTPError, match="403") if is_refused else nullcontext():
        urllib.request.urlopen(request, timeout=30).close()


def test_only_the_page_itself_is_open_to_pages_of_other_sites(url: str) -> None:
    is_open = {one.path for one in app.ENDPOINTS if one.is_open}
    assert is_open == {"/health", "/", "/static/page.css", "/static/page.js", "/pages/{page}"}
    for path in ("/v1/tree", "/v1/programs", "/v1/pages", "/v1/models", "/metrics"):
        assert post(url, path, b"", "origin: http://evil.example\r\n", "GET")[0] == 403


def test_publishing_needs_http(over_socket: bn.RuntimeEndpoint) -> None:
    with pytest.raises(bn.Unsupported, match="save"):
        over_socket.publish(judge.run(backend=over_socket).show())


def test_tenants_see_neither_figures_nor_pages_of_others(two_tenants: str) -> None:
    for what in ("stats", "tree", "programs"):
        for key, status in (("", "401"), ("1" * 20, "403")):
            with pytest.raises(urllib.error.HTTPError, match=status):
                read(f"{two_tenants}/v1/{what}", key)
    with get(f"{two_tenants}/metrics", "1" * 20) as response:
        names = re.findall(r"^# TYPE (\w+)", response.read().decode(), re.M)
    assert names == ["banyan_http_responses_total"]
    with bn.connect(two_tenants, token="1" * 20) as one:
        one.publish(judge.run(backend=one).show())
    assert len(read(f"{two_tenants}/v1/pages", "1" * 20)["data"]) == 1
    assert read(f"{two_tenants}/v1/pages", "2" * 20)["data"] == []


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_in_chromium(width: int, scheme: Any, url: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium")
    with bn.connect(url) as backend, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url)
        page.get_by_text("connected").wait_for()
        assert page.locator("html").evaluate("page => page.scrollWidth") == width, "nothing sticks out"

        page.keyboard.press("Tab")  # the keyboard alone: skip the header, write, send
        page.keyboard.press("Enter")
        page.keyboard.type("Hi, who are you?")
        page.keyboard.press("Enter")
        page.locator("#turns small").wait_for()
        assert "prompt tokens" in page.locator("#turns").inner_text()
        assert page.locator("#send").is_visible()
        assert page.locator("#stop").is_hidden()

        post(url, "/v1/responses", {"model": "pocket", "input": "Hi", "max_output_tokens": 2})
        page.locator("#running summary").filter(has_text="idle").filter(has_text="response").first.wait_for()

        judge.run(backend=backend)["verdict"]
        summary = page.locator("#running summary").filter(has_text="judge").first
        summary.wait_for()
        summary.focus()
        page.keyboard.press("Enter")
        page.get_by_text("Branch 2 — draft").locator("visible=true").first.wait_for()
        page.locator("#nodes code").filter(has_text="Which tree is the oldest?").first.wait_for()

        unnamed = page.locator("button, input, textarea, a, svg[role=img]").evaluate_all(
            "all => all.filter(one => !(one.labels?.length || one.ariaLabel || one.textContent.trim())).length"
        )
        assert unnamed == 0, "a screen reader has a name for each control and chart"
        for _ in range(2):
            contrast = page.locator("body, .facts, .control, summary small, figcaption, #send, #stop").evaluate_all(
                CONTRAST
            )
            assert min(contrast) >= 4.5, "text is readable in light and dark"
            page.locator("#theme").click()
        assert problems == []
        browser.close()


CONTRAST = """all => all.filter(one => !one.disabled).map(one => {
  const channels = (color) => color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const linear = (c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = (color) => channels(color).reduce((sum, c, i) => sum + linear(c / 255) * [.2126, .7152, .0722][i], 0);
  let behind = one;
  while (getComputedStyle(behind).backgroundColor.endsWith(", 0)")) behind = behind.parentElement;
  const [a, b] = [getComputedStyle(one).color, getComputedStyle(behind).backgroundColor].map(light);
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
})"""
