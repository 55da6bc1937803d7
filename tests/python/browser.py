"""Drives the page in a real headless Chromium through its DevTools protocol.

Usage: browser.py CHROMIUM URL ADMIN_KEY URL_WITH_KEYS

The first server takes no key for requests and ADMIN_KEY for the live picture; the second wants keys for
everything. HEARTH_SCREENSHOT names a folder for the pictures of docs/; without it none is made.
"""

import asyncio
import base64
import json
import os
import sys
import tempfile
from pathlib import Path

import aiohttp

CHROMIUM, URL, ADMIN_KEY, CLOSED_URL = sys.argv[1:]
PATIENCE = 30
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking",
    "--mute-audio", "--remote-debugging-port=0",
]


class Page:
    """A tab of the browser."""

    def __init__(self, socket):
        self.socket, self.answers, self.problems, self.urls = socket, {}, [], []
        self.sent = 0
        self.reader = asyncio.create_task(self.read())

    async def read(self):
        async for message in self.socket:
            message = json.loads(message.data)
            if "id" in message:
                self.answers.pop(message["id"]).set_result(message)
                continue
            parameters = message["params"]
            match message["method"]:
                case "Runtime.exceptionThrown":
                    self.problems.append(parameters["exceptionDetails"])
                # Violations of the Content-Security-Policy are such entries.
                case "Log.entryAdded" if parameters["entry"]["source"] in ("security", "javascript", "violation"):
                    self.problems.append(parameters["entry"])
                case "Network.requestWillBeSent":
                    self.urls.append(parameters["request"]["url"])

    async def call(self, method, **parameters):
        self.sent += 1
        answer = self.answers[self.sent] = asyncio.get_running_loop().create_future()
        await self.socket.send_str(json.dumps({"id": self.sent, "method": method, "params": parameters}))
        message = await asyncio.wait_for(answer, PATIENCE)
        assert "error" not in message, (method, message)
        return message["result"]

    async def run(self, script):
        """The value of a JavaScript expression."""
        result = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result)
        return result["result"].get("value")

    async def until(self, script):
        """Waits until the expression is truthy, and returns its value."""
        for _ in range(PATIENCE * 20):
            if value := await self.run(script):
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(f"never: {script}; the page says {await self.run('document.body.innerText')!r}")

    async def open(self, url):
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && Boolean(document.querySelector('#state-text'))")

    async def press(self, key, **more):
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text, **more)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **more)

    async def write(self, text):
        await self.call("Input.insertText", text=text)

    async def shape(self, width, height, dark=False, phone=False):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, name, width=1280, height=840, dark=False, phone=False):
        """A PNG, where pictures are asked for."""
        folder = os.environ.get("HEARTH_SCREENSHOT")
        if not folder:
            return
        await self.shape(width, height, dark, phone)
        await asyncio.sleep(1)
        shot = await self.call("Page.captureScreenshot", format="png")
        Path(folder, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    async def keys(self, **keys):
        """Sets keys as the dialog does, for the next load."""
        for name, key in keys.items():
            await self.run(f"sessionStorage.setItem('{name}-key', {json.dumps(key)})")


async def chat(http, text, **more):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 150} | more
    async with http.post(f"{URL}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def counters(http):
    async with http.get(f"{URL}/server_info") as answer:
        return (await answer.json())["internal_states"][0]


async def the_picture_changes_as_requests_run(page, http):
    await page.open(URL)
    await page.until("document.querySelector('#keys').open")
    assert "key" in await page.run("document.querySelector('#notice').textContent")
    # The dialog, by keyboard.
    await page.run("document.querySelector('#admin-key').focus()")
    await page.write("wrong")
    await page.press("Enter")
    await page.until("document.querySelector('#state-text').textContent === 'wrong key'")
    assert "refused the key" in await page.run("document.querySelector('#notice').textContent")
    # The dialog says which of the two keys is the matter.
    await page.until("document.querySelector('#admin-key-state').className === 'wrong'")
    assert await page.run("document.querySelector('#api-key-state').className") == "none"
    await page.until("document.activeElement.id === 'admin-key'")
    await page.run("document.querySelector('#admin-key').value = ''; document.querySelector('#admin-key').focus()")
    await page.write(ADMIN_KEY)
    await page.press("Enter")
    await page.until("document.querySelector('#state-text').textContent === 'ready'")
    assert await page.run("document.querySelector('#notice').hidden")
    pixels = "['tree', 'lanes', 'chart-output'].map((id) => document.getElementById(id).toDataURL().length)"
    before = await page.run(pixels)
    assert await page.run("document.querySelector('#running').textContent") == "0"
    story = "Tell me a story about a dog who finds a red ball in the garden"
    requests = [asyncio.create_task(chat(http, f"{story} {end}", seed=n, ignore_eos=True))
                for n, end in enumerate(["and a cat.", "and a bird.", "near the sea.", "and a cat who sings."] * 2)]
    await page.until("Number(document.querySelector('#running').textContent) > 0")
    await page.until("document.querySelector('#batch-size').textContent.includes('decode')")
    await page.until("parseFloat(document.querySelector('#output').textContent) > 0")
    await asyncio.gather(*requests)
    await the_pictures_of_a_busy_server(page, http)
    await page.until("document.querySelector('#running').textContent === '0'")
    await page.until("/[0-9]+ tokens in [0-9]+ nodes/.test(document.querySelector('#tree-size').textContent)")
    # A picture follows within a second; the tree comes at most twice in one.
    for name, was in zip(("tree", "lanes", "chart-output"), before):
        await page.until(f"document.getElementById('{name}').toDataURL().length !== {was}")
    # Nodes are reached by keyboard, and an administrator reads their text.
    await page.run("document.querySelector('#tree').focus()")
    for _ in range(12):
        await page.press("ArrowRight")
    await page.until("document.querySelector('#tree-node').textContent.includes('tokens')")
    await page.until("/story|stories/.test(document.querySelector('#tree-node pre')?.textContent)")


async def the_pictures_of_a_busy_server(page, http):
    """The pictures for docs/, where they are asked for: chats of several users over three system prompts."""
    if not os.environ.get("HEARTH_SCREENSHOT"):
        return
    rules = "Use short words. Be kind to the animals. End with something that everybody can learn from. " * 4
    roles = [f"You tell stories to {whom}. {rules}" for whom in ("children", "sailors", "gardeners")]
    topics = ["dog", "cat", "bird", "boat", "tree", "ball", "king", "fish"]

    async def user(number):
        messages = [{"role": "system", "content": roles[number % 3]}]
        for turn in range(6):
            topic = topics[(number * 3 + turn) % len(topics)]
            messages.append({"role": "user", "content": f"Tell me about the {topic} of friend {number % 5}."})
            answer = await chat(http, "", messages=messages, max_tokens=40 + 25 * (number % 4), seed=number, ignore_eos=True)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"][:80]})
            await asyncio.sleep(0.5 + number % 3)

    users = [asyncio.create_task(user(number)) for number in range(14)]
    await asyncio.sleep(9)
    await page.picture("page")
    await page.picture("page-dark", dark=True)
    await page.picture("page-phone", 390, 844, phone=True)
    await page.shape(1280, 840)
    await asyncio.gather(*users)


async def answers_stream_and_stop(page, http):
    await page.run("document.querySelector('#tab-play').click(); document.querySelector('#message').focus()")
    await page.until("document.querySelector('[name=model]').value")
    await page.write("What is 3 + 4?")
    await page.press("Enter")
    await page.until("!document.querySelector('#send').hidden && document.querySelectorAll('.assistant .token').length > 2")
    assert "7" in await page.run("document.querySelector('.assistant .text').textContent")
    assert "tokens/s" in await page.run("document.querySelector('.facts').textContent")
    await page.run("document.querySelectorAll('.assistant .token')[2].click()")
    shares = await page.until("[...document.querySelectorAll('#token li')].map((row) => row.textContent)")
    assert len(shares) >= 8 and all("%" in share for share in shares), shares
    await page.picture("playground")
    await page.press("Escape")
    assert await page.run("document.querySelector('#token').hidden")
    # A long answer is stopped with the keyboard, and the server stops too.
    cancelled = (await counters(http))["cancelled"]
    await page.run("document.querySelector('#message').focus(); document.querySelector('[name=max_tokens]').value = 900")
    await page.run("document.querySelector('[name=format]').value = 'regex'")
    await page.run("document.querySelector('[name=grammar]').value = '[0-9]{890}'")
    # Beside others the answer takes a while: alone, it may be whole before the key is pressed.
    others = [asyncio.create_task(chat(http, f"Story {n}", ignore_eos=True, max_tokens=700)) for n in range(24)]
    await page.write("Tell me a very long story.")
    await page.press("Enter")
    await page.until("document.querySelectorAll('.message.assistant')[1]?.querySelectorAll('.token').length > 3")
    await page.press("Escape")
    await page.until("Boolean(document.querySelector('.message.stopped'))")
    await asyncio.gather(*others)
    for _ in range(200):
        state = await counters(http)
        if state["cancelled"] > cancelled and state["running"] == 0:
            break
        await asyncio.sleep(0.05)
    assert state["cancelled"] == cancelled + 1, state


async def forced_tokens_are_shaded_and_two_settings_stand_side_by_side(page):
    await page.run("""
      document.querySelector('#clear').click();
      document.querySelector('[name=max_tokens]').value = '';
      document.querySelector('.settings').open = true;
      const format = document.querySelector('[name=format]');
      format.value = 'schema';
      format.dispatchEvent(new Event('change', { bubbles: true }));
      document.querySelector('#compare').click();
      document.querySelector('#message').focus();
    """)
    await page.write("A dog")
    await page.press("Enter")
    await page.until("!document.querySelector('#send').hidden && document.querySelectorAll('.facts').length === 2")
    both = await page.run("[...document.querySelectorAll('.chat')].map((chat) => chat.querySelectorAll('.forced').length)")
    assert both[0] > 3 and both[1] == 0, both
    text = await page.run("document.querySelector('.chat .assistant .text').textContent")
    assert set(json.loads(text)) == {"name", "year", "tags"}, text
    await page.run("[...document.querySelectorAll('.settings')].forEach((settings) => { settings.open = false })")
    await page.picture("playground-two")
    # The copied text is the request that was sent.
    await page.run("""
      window.copied = [];
      Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { copied.push(text) } } });
      for (const name of ['curl', 'python']) document.querySelector(`[name=${name}]`).click();
    """)
    curl, python = await page.until("copied.length === 2 && copied")
    assert "/v1/chat/completions" in curl and "json_schema" in curl, curl
    assert "OpenAI(base_url=" in python and "json_schema" in python, python
    compile(python, "copied", "exec")
    shell = await asyncio.create_subprocess_shell(curl.replace("curl ", "curl -s ", 1), stdout=asyncio.subprocess.PIPE)
    answer = json.loads((await shell.communicate())[0])
    assert "choices" in answer, answer


async def the_description_sends_an_example_of_each_group(page):
    await page.call("Page.navigate", url=f"{URL}/docs")
    await page.until("document.querySelectorAll('#routes section').length > 3")
    groups = await page.run("[...document.querySelectorAll('#groups a')].map((link) => link.textContent)")
    assert "OpenAI" in groups and "llama-server" in groups and "Hearth" in groups, groups
    shown = await page.run("document.querySelectorAll('#routes .example').length")
    assert shown == len(groups), (shown, groups)
    await page.run("for (const form of document.querySelectorAll('.example')) form.requestSubmit()")
    answers = "[...document.querySelectorAll('.example pre')].map((answer) => answer.textContent)"
    done = "[...document.querySelectorAll('.example button')].every((button) => !button.disabled)"
    await page.until(f"{done} && {answers}.every((answer) => answer.length > 20)")
    for group, answer in zip(groups, await page.run(answers)):
        assert answer.startswith("200"), (group, answer)
    streamed = (await page.run(answers))[0]
    assert "data: [DONE]" in streamed, streamed
    chat = "[...document.querySelectorAll('#routes details')].find((route) => route.textContent.includes('/v1/chat/completions'))"
    await page.run(f"{chat}.querySelector('summary').click()")
    assert await page.run("document.querySelectorAll('#routes details[open] td').length") > 30


async def a_wrong_key_is_told(page):
    await page.open(CLOSED_URL)
    await page.keys(api="wrong", admin="wrong")
    await page.open(f"{CLOSED_URL}/?again#/play")
    await page.until("location.search === '?again' && document.querySelector('[aria-selected=true]').id === 'tab-play'")
    await page.run("document.querySelector('#message').focus()")
    await page.write("Hello")
    await page.press("Enter")
    await page.until("document.querySelector('.message .error')?.textContent.includes('refused the key')")
    assert await page.run("document.querySelector('#keys').open")
    await page.until("document.querySelector('#api-key-state').className === 'wrong'")
    await page.until("document.querySelector('#admin-key-state').className === 'wrong'")
    # The right keys, one in each field.
    for name, key in (("api", "user"), ("admin", ADMIN_KEY)):
        await page.run(f"document.querySelector('#{name}-key').value = ''; document.querySelector('#{name}-key').focus()")
        await page.write(key)
    await page.press("Enter")
    await page.until("!document.querySelector('#keys').open")
    await page.run("document.querySelector('#keys-open').click()")
    for name in ("api", "admin"):
        await page.until(f"document.querySelector('#{name}-key-state').className === 'right'")
    assert await page.run("[sessionStorage.getItem('api-key'), localStorage.length]") == ["user", 0]


async def main():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
        try:
            port = Path(profile, "DevToolsActivePort")
            for _ in range(PATIENCE * 20):
                if port.exists() and port.read_text().strip():
                    break
                await asyncio.sleep(0.05)
            address = f"http://127.0.0.1:{port.read_text().split()[0]}"
            async with aiohttp.ClientSession() as http:
                async with http.put(f"{address}/json/new?about:blank") as answer:
                    target = await answer.json()
                async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.call(f"{domain}.enable")
                    await page.shape(1280, 840)
                    await the_picture_changes_as_requests_run(page, http)
                    await answers_stream_and_stop(page, http)
                    await forced_tokens_are_shaded_and_two_settings_stand_side_by_side(page)
                    assert not page.problems, page.problems
                    await the_description_sends_an_example_of_each_group(page)
                    assert not page.problems, page.problems
                    await a_wrong_key_is_told(page)
                    assert not page.problems, page.problems
                    strangers = [url for url in page.urls if not url.startswith((URL, CLOSED_URL, "data:", "about:"))]
                    assert not strangers, strangers
        finally:
            browser.terminate()
            await browser.wait()
    print("the page works in Chromium")


asyncio.run(main())
