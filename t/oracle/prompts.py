"""The prompts whose logits are compared: chat turns as SmolLM2's template writes them, and bare text."""

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(user, system=SYSTEM):
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    )


def long_text():
    """Some seven hundred tokens that are not one sentence over and over."""
    lines = ["A ledger of the lighthouse, copied by its last keeper.\n"]
    weather = ["calm", "fog from the west", "a hard gale", "snow", "rain until noon", "clear and cold"]
    ships = ["Aurora", "Margaret Ann", "Kestrel", "Old Hundred", "Saint Brendan"]
    for day in range(1, 31):
        lines.append(
            f"Day {day}: {weather[day * 7 % 6]}; oil burnt {day * 13 % 9 + 2} gallons; "
            f"the {ships[day * 3 % 5]} passed {'north' if day % 2 else 'south'}bound at {day * 5 % 12 + 1} bells.\n"
        )
    lines.append("From this ledger one can see that the weather")
    return "".join(lines)


PROMPTS = [
    ("capital", chat("What is the capital of France?")),
    ("haiku", chat("Write a haiku about the sea.")),
    ("sum", chat("What is 17 + 26? Answer with the number only.")),
    ("story", chat("Tell me a short story about a robot who learns to paint.")),
    ("list", chat("List three reasons to learn a second language.")),
    ("python", chat("Write a Python function that returns the n-th Fibonacci number.")),
    ("sql", chat("Give me a SQL query that counts the orders of each customer.")),
    ("c-code", "#include <stdio.h>\n\nint main(void)\n{\n    for (int i = 0; i < 10; i++) {\n"),
    ("json", '{"name": "Alice", "age": 30, "address": {"street": "'),
    ("html", "<!DOCTYPE html>\n<html>\n<head>\n    <title>My page</title>\n"),
    ("chinese", chat("请用中文介绍一下北京的历史。")),
    ("chinese-bare", "人工智能是计算机科学的一个分支，它"),
    ("japanese", "昔々、あるところに、"),
    ("german", chat("Erkläre mir bitte, warum der Himmel blau ist.")),
    ("arabic", "السلام عليكم، كيف"),
    ("emoji", chat("What do these mean? 🎉🚀👩‍🚀🇫🇷 😀")),
    ("emoji-bare", "🙂🙃🙂🙃🙂🙃🙂"),
    ("digits", "3.14159265358979323846 2.71828182845904523536 1.41421356"),
    ("spaces", "a    b\t\tc\n\n\n    d  \u00a0 e"),
    ("pirate", chat("Who are you?", "You are a pirate. Speak like one.")),
    ("one-token", "The"),
    ("repeat", "ab " * 40),
    ("poem", "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n"),
    ("long", long_text()),
]
