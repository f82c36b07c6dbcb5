"""A burst: N chat requests at once against an nginx, each on a connection of its own.

    burst.py PORT COUNT [--stream] [--model NAME] [--seconds S] [--header "Name: value"] ...

Every request must be answered within S seconds (120): completely with 200, or with 429 or 503 and a
Retry-After of at least a second, in the API's shape. Prints how many ended how, as JSON, and fails
if one ended otherwise: a broken connection, another status, an answer without its end.
"""

import argparse
import asyncio
import collections
import json
import resource
import sys


def request(arguments):
    body = json.dumps({"model": arguments.model, "stream": arguments.stream, "max_tokens": 8,
                       "messages": [{"role": "user", "content": "Hello there"}]})
    headers = "".join(f"{header}\r\n" for header in arguments.header)
    return (f"POST /v1/chat/completions HTTP/1.1\r\nHost: burst\r\nConnection: close\r\n{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode()


def judge(raw, stream):
    """What an answer is: "200", "429", "503", or a complaint."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = lines[0].split(" ")[1] if lines[0].startswith("HTTP/1.1 ") else "none"
    headers = {name.lower(): value for name, _, value in
               (line.partition(": ") for line in lines[1:])}
    if status == "200":
        whole = b"data: [DONE]" in body and b'"error"' not in body if stream else \
            headers.get("content-length") == str(len(body)) and b'"finish_reason"' in body
        return "200" if whole else "200 without its end"
    if status not in ("429", "503"):
        return f"status {status}"
    if int(headers.get("retry-after", "0")) < 1:
        return f"{status} without Retry-After"
    return status if json.loads(body)["error"]["message"] else f"{status} without a message"


async def one(arguments, data, start):
    await start.wait()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", arguments.port)
        writer.write(data)
        raw = await asyncio.wait_for(reader.read(-1), arguments.seconds)
        writer.close()
    except (OSError, asyncio.TimeoutError) as error:
        return type(error).__name__
    return judge(raw, arguments.stream)


async def burst(arguments):
    start = asyncio.Event()
    data = request(arguments)
    tasks = [asyncio.create_task(one(arguments, data, start)) for _ in range(arguments.count)]
    await asyncio.sleep(0)
    start.set()
    return collections.Counter(await asyncio.gather(*tasks))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--model", default="m")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--header", action="append", default=[])
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ended = asyncio.run(burst(arguments))
    print(json.dumps(ended), flush=True)
    sys.exit(not set(ended) <= {"200", "429", "503"})


main()
