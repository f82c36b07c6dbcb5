"""The official openai package against a running cluster (t/cluster): what its users would call, and what they would
catch."""

import asyncio
import os
import sys

import openai

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Tests, wait_at_rest  # noqa: E402

URL = os.environ["PD_URL"]
SETTINGS = {"base_url": URL, "api_key": "none", "max_retries": 0, "timeout": float(os.environ.get("PD_PATIENCE", "60"))}
CLIENT = openai.OpenAI(**SETTINGS)
MODEL = CLIENT.models.list().data[0].id
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = "Once upon a time there was a little"


def chat(**more):
    return CLIENT.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 20,
                                             **more})


def complete(**more):
    return CLIENT.completions.create(**{"model": MODEL, "prompt": STORY, "temperature": 0, "max_tokens": 12, **more})


def refused(kind, param, code, call, **more):
    """The call raises that kind of error, and its fields say so."""
    try:
        call(**more)
    except kind as error:
        seen = (error.param, error.code)
        assert seen == (param, code), seen
        return error
    raise AssertionError(f"{more} was taken")


def models_can_be_listed_and_retrieved():
    assert [model.id for model in CLIENT.models.list()] == [MODEL]
    assert CLIENT.models.retrieve(MODEL).object == "model"
    refused(openai.NotFoundError, None, "model_not_found", CLIENT.models.retrieve, model="gpt-99")


def a_chat_is_answered():
    answer = chat()
    choice = answer.choices[0]
    assert "Paris" in choice.message.content, choice.message.content
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def a_stream_says_the_same():
    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, text
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert ends[-1] == whole.choices[0].finish_reason and not any(ends[:-1])
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens and not chunks[-1].choices
    assert len({chunk.id for chunk in chunks}) == 1


def a_conversation_goes_on_with_what_was_answered():
    first = chat()
    talk = [{"role": "system", "content": "You are brief."}, *QUESTION, first.choices[0].message,
            {"role": "user", "content": [{"type": "text", "text": "And of"}, {"type": "text", "text": "Italy?"}]}]
    answer = chat(messages=talk)
    assert answer.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens
    assert answer.choices[0].message.content


def completions_take_text_tokens_and_lists():
    text = complete()
    assert text.object == "text_completion" and text.choices[0].text and text.choices[0].finish_reason == "length"
    tokens = complete(prompt=[504, 253, 1000, 2000])
    assert tokens.usage.prompt_tokens == 4
    both = complete(prompt=[STORY, "1, 2, 3, 4,"])
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == text.choices[0].text
    assert both.usage.completion_tokens == 24
    lists = complete(prompt=[[504, 253, 1000, 2000], [10, 20]])
    assert lists.choices[0].text == tokens.choices[0].text and lists.usage.prompt_tokens == 6


def a_list_streams_side_by_side():
    whole = complete(prompt=[STORY, "1, 2, 3, 4,"])
    text = ["", ""]
    for chunk in complete(prompt=[STORY, "1, 2, 3, 4,"], stream=True):
        text[chunk.choices[0].index] += chunk.choices[0].text
    assert text == [choice.text for choice in whole.choices], text


def a_seed_decides_and_its_absence_does_not():
    draw = {"temperature": 1.0, "max_tokens": 24}
    assert complete(seed=7, **draw).choices[0].text == complete(seed=7, **draw).choices[0].text
    assert len({complete(**draw).choices[0].text for _ in range(4)}) > 1


def several_answers_to_one_prompt():
    draw = {"temperature": 1.0, "max_tokens": 24, "seed": 7}
    alone = complete(**draw)
    three = complete(n=3, **draw)
    texts = [choice.text for choice in three.choices]
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert texts[0] == alone.choices[0].text and len(set(texts)) == 3, texts
    assert three.usage.prompt_tokens == alone.usage.prompt_tokens
    streamed = ["", "", ""]
    for chunk in complete(n=3, stream=True, **draw):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts, streamed
    both = chat(n=2).choices
    assert [choice.index for choice in both] == [0, 1] and both[0].message == both[1].message


def an_answer_ends_where_it_was_told_to():
    named = 3365  # " named"
    whole = complete().choices[0].text
    ends = complete(extra_body={"stop_token_ids": [named]}).choices[0]
    assert " named" in whole and ends.text == whole[:whole.find(" named")], (whole, ends.text)
    assert ends.finish_reason == "stop"
    longer = complete(extra_body={"stop_token_ids": [named], "min_tokens": 12})
    assert longer.usage.completion_tokens == 12 and " named" not in longer.choices[0].text


def sampling_is_obeyed():
    greedy = complete().choices[0].text
    assert complete(temperature=1.9, seed=3, extra_body={"top_k": 1}).choices[0].text == greedy
    assert complete(temperature=1.9, seed=3, top_p=1e-6).choices[0].text == greedy
    assert complete(temperature=1.9, seed=3, extra_body={"min_p": 1}).choices[0].text == greedy
    counted = complete(prompt="1, 2, 3, 4, 5, 6,", stop=["9"], max_tokens=40).choices[0]
    assert counted.finish_reason == "stop" and "9" not in counted.text and "8" in counted.text, counted.text
    first = complete(max_tokens=1, extra_body={"logit_bias": {"28": 100}}).choices[0].text
    assert complete(max_tokens=3, extra_body={"logit_bias": {"28": 100}}).choices[0].text == first * 3
    long = chat(max_tokens=None, max_completion_tokens=60, extra_body={"ignore_eos": True})
    assert long.usage.completion_tokens == 60 and long.choices[0].finish_reason == "length"


def log_probabilities_belong_to_the_answer():
    answer = chat(logprobs=True, top_logprobs=3).choices[0]
    tokens = answer.logprobs.content
    said = b"".join(bytes(token.bytes) for token in tokens).decode()
    assert said.startswith(answer.message.content), said
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.logprob >= max(top.logprob for top in token.top_logprobs) - 1e-5  # greedy
    streamed = [token for chunk in chat(logprobs=True, stream=True) if chunk.choices and chunk.choices[0].logprobs
                for token in chunk.choices[0].logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    text = complete(logprobs=2).choices[0]
    assert "".join(text.logprobs.tokens) == text.text and text.logprobs.text_offset[0] == 0
    assert all(len(top) in (2, 3) for top in text.logprobs.top_logprobs)


def refusals_are_the_errors_users_catch():
    refused(openai.BadRequestError, "temperature", "decimal_above_max_value", chat, temperature=3)
    refused(openai.BadRequestError, "n", "integer_above_max_value", chat, n=129)
    refused(openai.BadRequestError, "tools[0]", "unsupported_parameter", chat,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    refused(openai.BadRequestError, "messages[0].content[0].type", "unsupported_value", chat, messages=[
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
    refused(openai.BadRequestError, "nonsense", "unknown_parameter", chat, extra_body={"nonsense": 1})
    refused(openai.NotFoundError, "model", "model_not_found", chat, model="gpt-99")
    error = refused(openai.BadRequestError, "messages", "context_length_exceeded", chat,
                    messages=[{"role": "user", "content": "word " * 20000}])
    assert "tokens" in error.message, error.message


def requests_have_ids():
    raw = CLIENT.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=1, extra_headers={"X-Request-Id": "from-the-client.1"})
    assert raw.headers["x-request-id"] == "from-the-client.1"
    assert raw.parse().id == "chatcmpl-from-the-client.1"
    assert raw.parse()._request_id == "from-the-client.1"


def sixteen_at_once():
    async def ask(client, index):
        text = ""
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Count from {index}."}], temperature=0, max_tokens=16,
            stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def all_of_them():
        async with openai.AsyncOpenAI(**SETTINGS) as client:
            return await asyncio.gather(*(ask(client, index) for index in range(16)))

    together = asyncio.run(all_of_them())
    alone = [chat(messages=[{"role": "user", "content": f"Count from {index}."}], max_tokens=16).choices[0].message.content
             for index in (0, 7, 15)]
    assert [together[index] for index in (0, 7, 15)] == alone


def a_stream_can_be_closed():
    stream = chat(stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    for index, _ in enumerate(stream):
        if index == 4:
            break
    stream.close()
    wait_at_rest()


def other_scripts_come_back_whole():
    """An answer may be cut within a character (a token is less than one): nowhere but at its end."""
    question = [{"role": "user", "content": "Repeat: \u00dcbung \u4f60\u597d \U0001f642"}]
    joined = "".join(chunk.choices[0].delta.content or ""
                     for chunk in chat(messages=question, stream=True, max_tokens=40))
    assert "\ufffd" not in joined[:-1], joined
    assert joined == chat(messages=question, max_tokens=40).choices[0].message.content


if __name__ == "__main__":
    Tests().run(models_can_be_listed_and_retrieved, a_chat_is_answered, a_stream_says_the_same,
                a_conversation_goes_on_with_what_was_answered, completions_take_text_tokens_and_lists,
                a_list_streams_side_by_side, a_seed_decides_and_its_absence_does_not,
                several_answers_to_one_prompt, an_answer_ends_where_it_was_told_to, sampling_is_obeyed,
                log_probabilities_belong_to_the_answer, refusals_are_the_errors_users_catch, requests_have_ids, sixteen_at_once, a_stream_can_be_closed,
                other_scripts_come_back_whole)
