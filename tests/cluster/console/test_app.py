"""The console's paths: who may look and act, what is refused, and the headers of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cluster import console
from cluster.console.app import Console
from cluster.console.static_files import static_files
from cluster.gateway.http_app import create_app
from cluster.tenants.api_keys import ApiKeys
from cluster.tenants.hashed_keys import KeyOwner, hash_of
from tests.cluster.console.scripted_source import HOSTILE, NOW, ScriptedSource, choice, row
from tests.cluster.gateway.http_listener import metrics
from tests.cluster.scripted_generator import ScriptedGenerator

KEYS = ApiKeys({hash_of("t"): KeyOwner("acme"), hash_of("o"): KeyOwner("alice", "operator")})
OPERATOR, TENANT = {"authorization": "Bearer o"}, {"authorization": "Bearer t"}
READS = ("/console/feed", "/console/requests", "/console/request?id=r", "/console/configuration")
ACTS = ("/console/stop?id=r&tenant=acme", "/console/drain?replica=p", "/console/kill?replica=p")
MOST_BYTES = 250_000


@pytest.fixture
def source():
    return ScriptedSource()


def client(source, keys=None):
    shown = Console(source, source, keys, KEYS)
    app = create_app(ScriptedGenerator(), metrics, keys=keys, more_routes=shown.routes())
    return TestClient(app, "http://localhost:8000", follow_redirects=False)


def test_the_page_asks_for_no_key_and_lets_in_nothing_of_other_hosts(source):
    page = client(source, KEYS).get("/console")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert page.headers["x-content-type-options"] == "nosniff"
    again = client(source).get("/console", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_is_small_names_no_host_and_has_nothing_inline():
    files = static_files()
    assert sum(len(one.body) for one in files.values()) < MOST_BYTES
    assert {"index.html", "app.js", "uplot-license.txt"} <= files.keys()
    page = files["index.html"].body.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", page)
    for name, one in files.items():
        text = one.body.decode()
        if not name.startswith("uplot"):
            assert not re.search(r"https?://(?!www\.w3\.org/)", text), name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", text), name


def test_all_files_of_the_folder_are_served(source):
    folder = Path(console.__file__).parent / "static"
    for path in folder.iterdir():
        answer = client(source).get(f"/console/{path.name}")
        assert (answer.status_code, answer.content) == (200, path.read_bytes())
        assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e/app.py", "nothing.js", "app.py", "%00"])
def test_no_other_file_is_served(source, name):
    assert client(source).get(f"/console/{name}").status_code == 404


def test_browsers_are_led_from_the_root_to_the_page_and_others_are_not(source):
    browser = client(source).get("/", headers={"accept": "text/html,application/xhtml+xml"})
    assert (browser.status_code, browser.headers["location"]) == (307, "console")
    other = client(source).get("/", headers={"accept": "*/*"})
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", READS)
def test_where_keys_are_configured_only_an_operator_looks(source, path):
    source.rows.add(row("r", NOW, choice()))
    keyed = client(source, KEYS)
    assert keyed.get(path).status_code == 401
    assert keyed.get(path, headers=TENANT).status_code == 403
    if path != "/console/feed":
        assert keyed.get(path, headers=OPERATOR).status_code == 200
        assert client(source).get(path).status_code == 200


@pytest.mark.parametrize("keys", [None, KEYS])
@pytest.mark.parametrize("path", ACTS)
def test_only_an_operator_acts_even_where_no_keys_are_configured(source, path, keys):
    asking = client(source, keys)
    assert asking.post(path).status_code == 401
    assert asking.post(path, headers=TENANT).status_code == 403
    assert asking.get(path, headers=OPERATOR).status_code == 404
    assert source.done == []
    assert asking.post(path, headers=OPERATOR).status_code == 200
    assert source.done[0][-1] == "alice"


@pytest.mark.parametrize(
    "path",
    [
        "/console/requests?limit=x",
        "/console/requests?limit=1e9",
        "/console/requests?since_s=-1",
        "/console/requests?since_s=nan",
        "/console/requests?failed=1",
        "/console/requests?nothing=1",
        "/console/requests?tenant=a&tenant=b",
        f"/console/requests?endpoint={'x' * 600}",
        "/console/request",
        "/console/request?id=%00",
        "/console/configuration?x=1",
        "/console/feed?x=1",
    ],
)
def test_wrong_fields_are_refused(source, path):
    answer = client(source).get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_an_id_may_be_as_long_as_several_prompts_make_it(source):
    path = f"/console/stop?id={'x' * 128}-1&tenant=acme"
    assert client(source).post(path, headers=OPERATOR).status_code == 404


def test_a_request_for_the_head_of_the_feed_takes_no_place_in_it(source):
    answer = client(source).head("/console/feed")
    assert (answer.status_code, answer.content) == (200, b"")
    assert source.asked == 0


def test_another_method_is_refused(source):
    for path in ("/console", *READS):
        assert client(source).put(path).status_code == 405
    assert client(source).post("/").status_code == 405


@pytest.mark.parametrize(
    "path", ["/console/no.js", "/console/../x", "/console/requests?a=1", *ACTS]
)
def test_no_browser_takes_a_refusal_for_a_page(source, path):
    asked = client(source)
    elsewhere = {"origin": "https://page.example"}
    for answer in (asked.get(path), asked.post(path), asked.get(path, headers=elsewhere)):
        assert answer.status_code >= 400
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_page_of_another_site_gets_nothing(source):
    for path in ("/console", *READS, *ACTS):
        answer = client(source).get(path, headers={"origin": "https://page.example"})
        assert answer.status_code == 403


def test_requests_are_chosen_and_bounded(source):
    for number in range(300):
        source.rows.add(row(f"r{number}", NOW, choice(), tenant="acme" if number % 2 else "beta"))
    asking = client(source)
    assert len(asking.get("/console/requests").json()["rows"]) == 200
    chosen = asking.get("/console/requests?tenant=beta&limit=3&slowest=true").json()["rows"]
    assert [one["tenant"] for one in chosen] == ["beta"] * 3


def test_a_request_is_told_in_words_without_its_texts(source):
    source.rows.add(row("r", NOW, choice(0.5), prompt="my secret"))
    found = client(source).get("/console/request?id=r").json()
    stages = [one["stage"] for one in found["choices"][0]["stages"]]
    assert stages[:2] == ["admission", "prefill_queue"]
    assert any("The largest part of its TTFT was prefill" in text for text in found["words"]["0"])
    assert "secret" not in str(found)
    assert client(source).get("/console/request?id=other").status_code == 404


def test_markup_in_names_stays_text(source):
    answer = client(source).get("/console/configuration")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["configuration"]["model"]["path"] == HOSTILE
