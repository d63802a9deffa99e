"""A worker with a function of its own: it takes tasks of the kind `crawl` and counts the words of their pages.

    python docs/examples/count_words.py 'https://root.example/join#INVITE.KEYID'

What the function returns, a record or a list of records, is stored, uploaded and reported as those of the built-in
kinds are. The pages come through `tools.fetch`: under robots.txt, the caps and the guard of the worker's owner.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from swarm.executors.base import Tools
from swarm.wire import TaskBody
from swarm.worker import Worker
from swarm.worker.settings import WorkerSettings


async def crawl(task: TaskBody, tools: Tools) -> list[dict[str, Any]]:
    """Count the words of each page of a task."""
    records = []
    for url in task.urls:
        page = await tools.fetch(url)  # a page that can't be had fails the task, with its reason
        text = re.sub(r"<[^>]*>", " ", page.body.decode(page.charset or "utf-8", errors="replace"))
        records.append({"page": page.final_url, "words": len(text.split())})
    return records


def main() -> None:
    """Join the swarm behind the link, and work until Ctrl-C."""
    parser = argparse.ArgumentParser(description="count the words of pages, for a task swarm")
    parser.add_argument("link", help="the join link that the swarm's operator gave you")
    parser.add_argument("--data", type=Path, default=Path("count-words"), help="where keys and results are kept")
    parser.add_argument("--allow-private", action="store_true", help="let tasks reach this machine and its networks")
    given = parser.parse_args()
    settings = WorkerSettings(slots=4, data=given.data, allow_private=given.allow_private)
    Worker(given.link, settings=settings, crawl=crawl).run()


if __name__ == "__main__":
    main()
