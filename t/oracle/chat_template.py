"""Chat templates against jinja2, set up as Hugging Face sets it up.

Every rendered text must be equal to jinja2's, and the bytes marked literal must be exactly those that a client
wrote: the conversations use letters (from a private-use plane) that no template contains.

usage: chat_template.py RENDER MODEL.gguf [TOKENIZER_CONFIG.json ...]
"""

import datetime
import glob
import json
import os
import random
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} as a plain block."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
    return env


ENV = environment()


# The wire carries a message's fields, not their order, and no empty ones but content.
FIELDS = ["role", "content", "name", "tool_call_id", "reasoning_content", "tool_calls"]


def expected(case):
    messages = [{field: message.get(field) for field in FIELDS if message.get(field) or field == "content"}
                for message in json.loads(json.dumps(case["messages"]))]
    for message in messages:
        for call in message.get("tool_calls") or []:
            arguments = call.get("function", {}).get("arguments")
            if isinstance(arguments, str):
                call["function"]["arguments"] = json.loads(arguments)
    try:
        return ENV.from_string(case["template"]).render(
            messages=messages, tools=case["tools"],
            add_generation_prompt=case["add_generation_prompt"],
            bos_token=case["bos"], eos_token=case["eos"], **case["arguments"]), None
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError) as fault:
        return None, str(fault)


# Letters that no template contains, with a normal space and newline between.
CLIENT = [chr(c) for c in range(0xE000, 0xE040)]
PLAIN = ["Hello", "wörld", "<|im_start|>", "<|im_end|>", "</think>", "<think>", "\n", " ", "\t", "你好",
         "🙂", "'", '"', "\\", "{{ x }}", "{% if %}", "&<>", "<tool_response>", "\u00a0", "A", "z"]


def words(rng, alphabet):
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(0, 12)))


def tool(rng, alphabet):
    return {"type": "function", "function": {
        "name": "f" + words(rng, alphabet), "description": words(rng, alphabet),
        "parameters": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "description": words(rng, alphabet)},
            "b": {"type": "number", "enum": [1, 2.5, -3e20]}}}}}


def conversation(rng, alphabet):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": words(rng, alphabet)})
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": words(rng, alphabet)})
        if rng.random() < 0.3:
            messages.append({"role": "assistant", "content": rng.choice([None, words(rng, alphabet)]),
                             "tool_calls": [{"id": "c1", "type": "function", "function": {
                                 "name": "f" + words(rng, alphabet),
                                 "arguments": json.dumps({"a": words(rng, alphabet), "b": 1.5})}}]})
            messages.append({"role": "tool", "tool_call_id": "c1", "content": words(rng, alphabet)})
        elif rng.random() < 0.8:
            message = {"role": "assistant", "content": words(rng, alphabet)}
            if rng.random() < 0.3:
                message["reasoning_content"] = words(rng, alphabet)
            if rng.random() < 0.3:
                message["content"] = "<think>\n" + words(rng, alphabet) + "\n</think>\n\n" + message["content"]
            messages.append(message)
    if rng.random() < 0.6 and messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": words(rng, alphabet)})
    return messages


def cases(templates, rng, rounds):
    for name, template in templates:
        for i in range(rounds):
            alphabet = CLIENT if i % 2 else PLAIN + CLIENT
            yield name, {
                "template": template, "messages": conversation(rng, alphabet),
                "tools": [tool(rng, alphabet) for _ in range(rng.randrange(1, 3))] if rng.random() < 0.4 else None,
                "arguments": rng.choice([{}, {}, {"enable_thinking": False}, {"enable_thinking": True}]),
                "add_generation_prompt": rng.random() < 0.7, "bos": "<s>", "eos": "<|im_end|>",
            }


def marks_fault(case, text, literal):
    """What is wrong with the marks of a rendering whose client letters are all from CLIENT."""
    data = text.encode()
    marked = bytearray(len(data))
    end = 0
    for first, length in literal:
        if first < end or length == 0 or first + length > len(data):
            return f"span {first}+{length} is out of order"
        end = first + length
        marked[first:end] = b"\1" * length
    at = 0
    for letter in text:
        size = len(letter.encode())
        if letter in CLIENT and marked[at:at + size] != b"\1" * size:
            return f"a client's letter at byte {at} is not literal"
        at += size
    # No special token of the template may be inside a literal span unless a client wrote it.
    client = json.dumps([case["messages"], case["tools"]], ensure_ascii=False)
    for special in ("<|im_start|>", "<|im_end|>"):
        start = text.find(special)
        while start >= 0:
            offset = len(text[:start].encode())
            if any(marked[offset:offset + len(special)]) and special not in client:
                return f"the template's {special} at byte {offset} is literal"
            start = text.find(special, start + 1)
    return None


def sources(arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    for path in sorted(glob.glob(os.path.join(here, "templates", "*.jinja"))):
        with open(path, newline="") as file:
            yield os.path.basename(path), file.read()
    for path in arguments:
        if path.endswith(".gguf"):
            import gguf
            field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
            yield os.path.basename(path), bytes(field.parts[field.data[0]]).decode()
        else:
            with open(path) as file:
                yield path, json.load(file)["chat_template"]


def main():
    render = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              encoding="utf-8")
    rng = random.Random(20260131)
    templates = list(sources(sys.argv[2:]))
    total = differences = refused = 0
    for name, case in cases(templates, rng, 200):
        render.stdin.write(json.dumps(case) + "\n")
        render.stdin.flush()
        answer = json.loads(render.stdout.readline())
        text, fault = expected(case)
        total += 1
        refused += fault is not None
        wrong = None
        if fault is not None:
            if "error" not in answer:
                wrong = f"jinja2 fails ({fault}), ours renders"
        elif "error" in answer:
            wrong = f"ours fails: {answer['error']}"
        elif answer["text"] != text:
            at = len(os.path.commonprefix([text, answer["text"]]))
            wrong = (f"texts differ at character {at}:\n  jinja2 {text[max(0, at - 40):at + 60]!r}\n"
                     f"  ours   {answer['text'][max(0, at - 40):at + 60]!r}")
        else:
            wrong = marks_fault(case, text, answer["literal"])
        if wrong:
            differences += 1
            if differences <= 5:
                print(f"{name}: {wrong}", file=sys.stderr)
    render.stdin.close()
    print(f"{len(templates)} templates, {total} renderings ({refused} refused by both): {differences} differences")
    print(f"{total - differences} passed, {differences} failed")
    return 1 if differences or total == 0 else 0


sys.exit(main())
