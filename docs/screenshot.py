"""Make docs/playground.png: the playground with its first example, in Tekken's tokens, as headless Chromium shows it.

Needs `apt-get install chromium` and what the tests need; `python docs/screenshot.py` writes the picture.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from playwright.sync_api import sync_playwright

from maskwright import Vocabulary
from maskwright.serve import loading
from maskwright.serve.app import create_app
from maskwright.serve.server import Server
from maskwright.serve.service import Service
from maskwright.serve.settings import Access

OUT = Path(__file__).with_name("playground.png")
WIDTH, HEIGHT = 1180, 810


def main() -> None:
    loaded = loading.tiny()
    data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    vocabulary = Vocabulary.from_mistral(Tekkenizer.from_file(data))
    loaded.model.resize_token_embeddings(vocabulary.size)
    loaded.vocabulary, loaded.encode, loaded.name = vocabulary, vocabulary.encode, "tekken"
    service = Service(loaded)
    server = Server(create_app(service), service, Access(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not service.warm:
            time.sleep(0.05)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(address)
            page.wait_for_selector("#verdict strong")
            page.focus("#tokens")
            page.evaluate("document.activeElement.blur()")
            page.screenshot(path=OUT)
            browser.close()
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
