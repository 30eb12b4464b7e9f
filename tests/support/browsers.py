"""A headless Chromium, and pages that neither complain nor ask another host."""

from __future__ import annotations

import contextlib
import os
import shutil
from urllib.parse import urlsplit

import pytest

ARGUMENTS = [
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium():
    """Where Chromium is, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def opened(profile):
    """A browser with its profile in a folder; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api")
    path = chromium()
    if path is None:
        pytest.skip("there is no Chromium to try the page in: apt-get install chromium")
    with api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path=path, args=ARGUMENTS, viewport={"width": 1280, "height": 900}
        )
        context.set_default_timeout(30_000)
        yield context
        context.close()


@contextlib.contextmanager
def watched_page(browser, service):
    """A new page; it must not complain, nor ask any other host."""
    page, complaints, hosts = browser.new_page(), [], set()
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else 0)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.complaints = complaints
    yield page
    page.close()
    # the browser notes each answer of 400 and 503 by itself
    assert [said for said in complaints if "Failed to load resource" not in said] == []
    assert hosts <= {urlsplit(service.url).netloc, ""}  # "" of the icon, which is in the page
