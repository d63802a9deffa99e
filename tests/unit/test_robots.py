from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from swarm.web.robots import MAX_ROBOTS_BYTES, Rules, cut, decode_robots

SITE = "https://shop.example"


def allowed(text: str, path: str) -> bool:
    """What a worker makes of what the root has cut."""
    return Rules(cut(text)).allowed(SITE + path)


def test_no_file_lets_everything_in() -> None:
    assert cut("") == ""
    assert allowed("", "/anything")


def test_the_group_of_all_agents_holds_where_none_names_us() -> None:
    text = "User-agent: *\nDisallow: /private\n\nUser-agent: otherbot\nDisallow: /\n"

    assert not allowed(text, "/private/1")
    assert allowed(text, "/public")


def test_the_group_that_names_us_holds_alone() -> None:
    text = "User-agent: *\nDisallow: /\n\nUser-agent: Task-Swarm\nDisallow: /private\n"

    assert allowed(text, "/public")
    assert not allowed(text, "/private")


def test_a_group_that_names_us_without_a_rule_lets_us_in_where_all_others_are_kept_out() -> None:
    assert allowed("User-agent: *\nDisallow: /\n\nUser-agent: task-swarm\nDisallow:\n", "/")
    assert allowed("User-agent: *\nDisallow: /\n\nUser-agent: task-swarm\n", "/")


def test_a_version_behind_our_name_still_names_us() -> None:
    assert not allowed("User-agent: task-swarm/1.0\nDisallow: /x\n", "/x")


@pytest.mark.parametrize("name", ["task", "task-swarm-images", "swarm", "a task-swarm"])
def test_another_agent_with_a_similar_name_is_not_us(name: str) -> None:
    assert allowed(f"User-agent: {name}\nDisallow: /\n", "/")


def test_several_groups_that_name_us_count_as_one() -> None:
    text = (
        "User-agent: task-swarm\nDisallow: /a\n\nUser-agent: x\nDisallow: /\n\nUser-agent: task-swarm\nDisallow: /b\n"
    )

    assert not allowed(text, "/a")
    assert not allowed(text, "/b")
    assert allowed(text, "/c")


def test_agents_on_following_lines_share_a_group() -> None:
    assert not allowed("User-agent: x\nUser-agent: task-swarm\nUser-agent: y\nDisallow: /a\n", "/a")


def test_the_longest_matching_rule_wins_and_allow_wins_a_tie() -> None:
    text = "User-agent: *\nDisallow: /shop\nAllow: /shop/open\nDisallow: /tie\nAllow: /tie\nDisallow: /*.pdf$\n"

    assert not allowed(text, "/shop/closed")
    assert allowed(text, "/shop/open/1")
    assert allowed(text, "/tie")
    assert not allowed(text, "/a/b.pdf")
    assert allowed(text, "/a/b.pdf?x=1")


def test_only_our_group_travels_to_the_workers() -> None:
    text = (
        "Sitemap: https://shop.example/map.xml\n"
        "User-agent: *\nDisallow: /p # private\nCrawl-delay: 2\n"
        "User-agent: z\nDisallow: /z"
    )

    assert cut(text) == "User-agent: task-swarm\nDisallow: /p\nCrawl-delay: 2\n"


def test_a_crawl_delay_is_read_and_capped() -> None:
    assert Rules(cut("User-agent: *\nCrawl-delay: 2.5\n")).crawl_delay_s == 2.5
    assert Rules(cut("User-agent: *\nCrawl-delay: 1e99\n")).crawl_delay_s == 86_400
    assert Rules(cut("User-agent: *\nCrawl-delay: soon\n")).crawl_delay_s is None
    assert Rules(cut("User-agent: *\nCrawl-delay: nan\n")).crawl_delay_s is None


def test_the_file_itself_may_always_be_asked_for() -> None:
    assert allowed("User-agent: *\nDisallow: /\n", "/robots.txt")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_end_of_line_will_do(end: str) -> None:
    assert not allowed(end.join(["User-agent: *", "Disallow: /a", ""]), "/a")


def test_a_byte_order_mark_is_skipped() -> None:
    assert not allowed(decode_robots(b"\xef\xbb\xbfUser-agent: *\nDisallow: /a\n"), "/a")


def test_a_file_over_the_cap_loses_its_last_half_line() -> None:
    rules = b"User-agent: *\n" + b"Disallow: /abcdefgh\n" * 40_000
    text = decode_robots(rules[:MAX_ROBOTS_BYTES])

    assert text.endswith("Disallow: /abcdefgh\n")
    assert not allowed(text, "/abcdefgh")


def test_a_page_served_as_robots_txt_lets_everything_in() -> None:
    assert allowed("<!doctype html><html><body>Disallow: everything? user-agent</body></html>", "/")


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────────────────────────

agents = st.sampled_from(["*", "task-swarm", "Task-Swarm", "otherbot", "zbot"])
paths = st.text(alphabet="ab/*$", min_size=0, max_size=6).map(lambda text: "/" + text)
lines = st.one_of(
    agents.map(lambda agent: f"User-agent: {agent}"),
    st.tuples(st.sampled_from(["Allow", "Disallow", "disalow", "DISALLOW "]), paths).map(
        lambda both: f"{both[0]}: {both[1]}"
    ),
    st.sampled_from(
        ["", "# a remark", "Crawl-delay: 3", "Sitemap: https://x.example/", "Host: x", "Disallow:", "Disallow /a"]
    ),
)


@given(st.lists(lines, max_size=12), st.text(alphabet="ab/", max_size=6))
def test_cutting_changes_no_answer_of_the_parser(chosen: list[str], path: str) -> None:
    text = "\n".join(chosen)
    whole = Protego.parse(text)

    assert allowed(text, f"/{path}") == whole.can_fetch(f"{SITE}/{path}", "task-swarm")
    assert Rules(cut(text)).crawl_delay_s == whole.crawl_delay("task-swarm")


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reading(body: bytes) -> None:
    rules = Rules(cut(decode_robots(body)))

    assert rules.allowed(f"{SITE}/a") in (True, False)
    assert rules.crawl_delay_s is None or 0 <= rules.crawl_delay_s <= 86_400


@given(st.text(max_size=200))
def test_cutting_twice_is_cutting_once(text: str) -> None:
    assert cut(cut(text)) == cut(text)
    assert cut(cut(f"User-agent: *\n{text}")) == cut(f"User-agent: *\n{text}")
