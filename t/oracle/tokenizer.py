#!/usr/bin/env python3
"""Compares the worker's tokenizer with Hugging Face's `tokenizers`, id for id, over generated text.

    build/venv/bin/python t/oracle/tokenizer.py DRIVER [--gguf FILE] [--json DIR] [--count N] [--served N] [--seed N]

DRIVER is the built t/oracle/tokenize.c. Families: SmolLM2, from the vocabulary in a GGUF file, read as a
tokenizer.json made of it and by the name of its pre-tokeniser; the same vocabulary under the rules of
other families; and any directory with a tokenizer.json (Qwen3's, say). A family whose file is not given
is skipped, and said so. SentencePiece's families (Llama 2, Mistral): a vocabulary trained on the spot, spelt as
theirs, as both kinds of tokenizer.json that there are, as a GGUF file with scores, and as a tokenizer.model. Half of the lists of ids that are compared the other way, id to text, are
random: they hold broken characters.
"""
import argparse
import os
import pathlib
import random
import struct
import subprocess
import sys
import threading

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

SCRATCH = pathlib.Path(__file__).resolve().parents[2] / "build/oracle"

# ---- text ------------------------------------------------------------------------------------------

WORDS = """the of and to in is that for it as was with be by on not he I'm you're they've it's we'll don't
SHOULDN'T Can'T I'Ve He'LL she'd naïve café résumé Zürich señor don’t O'Brien rock'n'roll e-mail state-of-the-art
Transformer tokenizer KV-cache prefill decode https://example.org/a?b=c&d=%20 3.14159 1,000,000 0x7fff 2024-02-29
""".split()
CODE = ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n}\n", "#include <stdio.h>\n",
        "SELECT * FROM t WHERE a <> 'b';\n", "if err != nil {\n\treturn nil, err\n}\n", "<div class=\"x\">&nbsp;</div>\r\n",
        "let x = Some(|y| y?.z());\n", "\\begin{align} e^{i\\pi}+1 &= 0 \\\\\n", "$ ls -la | grep '^d' >> out.txt 2>&1\n", "    ", "\t\t"]
CONTRACTIONS = ["'s", "'S", "'\u017f", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D",
                "’s", "’t", "'\u212a", "''s", "'r", "'l", "'v", "'ſs", "'sS"]
SPACE = ["\t", "\n", "\v", "\f", "\r", " ", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2000", "\u2003",
         "\u2007", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\r\n", "\n\n", "  ", "   ",
         " \n", "\n ", "\t\n", "        "]
SCRIPTS = [(0x4E00, 0x9FFF), (0x3041, 0x30FF), (0x600, 0x6FF), (0x590, 0x5FF), (0x400, 0x4FF), (0x370, 0x3FF), (0x900, 0x97F),
           (0xE00, 0xE7F), (0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x980, 0x9FF), (0xB80, 0xBFF), (0xD00, 0xD7F), (0x1000, 0x109F),
           (0x1F00, 0x1FFF), (0x20000, 0x2A6DF), (0xA000, 0xA48C), (0x1200, 0x137F), (0xA0, 0x24F), (0x1E00, 0x1EFF)]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "❤️", "🏴‍☠️", "1️⃣", "🤷🏾‍♀️", "☃", "™", "♥️", "🦙"]
DIGITS = [0x30, 0x660, 0x6F0, 0x966, 0x9E6, 0xE50, 0x1040, 0xFF10, 0x1D7CE, 0x11066, 0x1E950]
NUMBERS = list("²³¹½¾٪⅓Ⅷⅻ①⑳㊿〇〡一二三万") + ["\U0001d7ff", "\U00010107", "\u3007", "\u19da", "\u0bf0"]
MARKS = [(0x300, 0x36F), (0x591, 0x5BD), (0x64B, 0x65F), (0x93C, 0x94D), (0xE38, 0xE4B), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF),
         (0x20D0, 0x20F0), (0xFE20, 0xFE2F), (0x3099, 0x309A), (0x1D165, 0x1D172), (0x9BE, 0x9D7), (0xB3E, 0xB57), (0x1161, 0x1175),
         (0x11A8, 0x11C2), (0x8CA, 0x8E1), (0x10D24, 0x10D27), (0x1E130, 0x1E136), (0x11930, 0x11944)]
COMPOSED = "éÅÅΩK;`´ǖḍ̇ẛ̣ÅﬁﬀſﬅİıßΆΐ가각힣ख़गড়ਲ਼ଡ଼གྷנּשׂ⫝̸𝅗𝅥丽〉\u0344\u0958\u212b\u1fef\u2126\ufb2c"
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "—", "…", "«", "»", "、", "。", "！", "？", "（", "）", "؟", "।", "::", "//", "->", "=="]
LOOK_ALIKES = ["<|im_start|>", "<|im_end|>", "<|im_start|", "<|im_<|im_end|>", "<|endoftext|>", "<|endoftext|", "<think>", "</think>",
               "<tool_call>", "</tool_call >", "<|", "|>", "<<|im_end|>>", "<|im_start|>user\n", "<repo_name>", "<file_sep>", "<jupyter_code>",
               "<|IM_END|>", "<|im_end|>\u0301", "é<|im_end|>", "Ġ", "Ċ", "ĠĠ", "[PAD]", "<s>", "</s>", "\u2581", " \u2581the",
               "<0x41>", "[INST]", "[INST] the", "<unk>"]


def inside(rng, ranges):
    first, last = rng.choice(ranges)
    return chr(rng.randint(first, last))


def any_character(rng):
    c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
    return chr(c) if not 0xD800 <= c <= 0xDFFF else "\ufffd"


def atom(rng):
    kind = rng.randrange(16)
    if kind == 0:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))
    if kind == 1:
        return rng.choice(WORDS).title() + rng.choice(CONTRACTIONS) + rng.choice(["", " ", "x", "S"])
    if kind == 2:
        return rng.choice(CODE)
    if kind == 3:
        return "".join(rng.choice(SPACE) for _ in range(rng.randint(1, 6)))
    if kind in (4, 5):
        script = [rng.choice(SCRIPTS)]
        return "".join(inside(rng, script) for _ in range(rng.randint(1, 12)))
    if kind == 6:
        return rng.choice(EMOJI)
    if kind == 7:
        zero = rng.choice(DIGITS)
        return "".join(chr(zero + rng.randrange(10)) for _ in range(rng.randint(1, 7)))
    if kind == 8:
        return rng.choice(NUMBERS)
    if kind == 9:
        return rng.choice("aeiouAnıKſ가가 ") + "".join(inside(rng, MARKS) for _ in range(rng.randint(1, 4)))
    if kind == 10:
        return rng.choice(COMPOSED) + (inside(rng, MARKS) if rng.randrange(2) else "")
    if kind == 11:
        return "".join(rng.choice(PUNCTUATION) for _ in range(rng.randint(1, 4)))
    if kind == 12:
        return rng.choice(LOOK_ALIKES)
    if kind == 13:
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))).decode("utf-8", "replace")
    if kind == 14:
        return "".join(any_character(rng) for _ in range(rng.randint(1, 6)))
    return rng.choice(WORDS)[: rng.randint(1, 9)] + rng.choice(["", " ", "\n", "\u3000"])


def texts(rng, count):
    for i in range(count):
        if i % 997 == 0:  # long runs of one thing: the places where a shortcut would show
            yield rng.choice([" ", "a", "\n", "1", "!", "中", "\u0301", "é", "'s", "<|"]) * rng.randint(100, 3000)
        else:
            yield "".join(atom(rng) for _ in range(rng.randint(1, 14)))


def every_character():
    """Each code point of the planes that are in use: in a row, and between marks that it may change places
    with or join."""
    planes = [range(0x80, 0xD800), range(0xE000, 0x34000), range(0xE0000, 0xE0200), range(0x10FF00, 0x110000)]
    for code_points in planes:
        for first in code_points[::64]:
            row = [chr(c) for c in range(first, min(first + 64, code_points.stop))]
            yield "".join(row)
            yield "".join(f"a\u0345{c}\u0334{c}\u0301" for c in row)


# ---- ours ------------------------------------------------------------------------------------------


def ask(driver, arguments, records):
    """Runs the driver; returns its digest and the list of what it answered to each record."""
    process = subprocess.Popen([driver, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed():
        for record in records:
            process.stdin.write(record)
        process.stdin.close()

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    digest = process.stdout.readline().decode().strip()
    answer = process.stdout.read()
    if process.wait() != 0:
        sys.exit(f"{driver} ended with {process.returncode}")
    feeder.join()
    return digest, answer


def encode_with(driver, arguments, samples):
    records = (b"e" + struct.pack("<I", len(t)) + t for t in (s.encode() for s in samples))
    digest, answer = ask(driver, arguments, records)
    at, result = 0, []
    for _ in samples:
        (count,) = struct.unpack_from("<I", answer, at)
        count = 0 if count == 0xFFFFFFFF else count
        result.append(list(struct.unpack_from(f"<{count}i", answer, at + 4)))
        at += 4 + 4 * count
    return digest, result


def decode_with(driver, arguments, lists):
    _, answer = ask(driver, arguments, (b"d" + struct.pack(f"<I{len(x)}I", len(x), *x) for x in lists))
    at, result = 0, []
    for _ in lists:
        (length,) = struct.unpack_from("<I", answer, at)
        result.append(answer[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return result


# ---- theirs ----------------------------------------------------------------------------------------


CONTRACTIONS_OF_ANY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
PUNCTUATION_AND_SPACE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def rules():
    """Steps by the name that llama.cpp gives them: those of the models' own files (llama.cpp's own for its
    default), whether text is normalised, and whether a piece that is a token is taken whole."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    word = CONTRACTIONS_OF_ANY_CASE + r"[^\r\n\p{L}\p{N}]?\p{L}+|"
    return {
        "smollm": ([pre_tokenizers.Digits(individual_digits=True), gpt2], False, False),
        "gpt-2": ([gpt2], False, False),
        "qwen2": ([split(word + r"\p{N}" + PUNCTUATION_AND_SPACE), bytes_only], True, False),
        "llama-bpe": ([split(word + r"\p{N}{1,3}" + PUNCTUATION_AND_SPACE), bytes_only], False, True),
        "default": (
            [
                split(r"[\p{P}\$\+<=>\^~\|]+"),
                split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                split(r"\p{N}+"),
                split("[0-9][0-9][0-9]"),
                bytes_only,
            ],
            False,
            False,
        ),
    }


# The rules of families that are served beside SmolLM2: Qwen2 to 3, Llama 3.
SERVED = ("qwen2", "llama-bpe")


class GGUFVocabulary:
    """The vocabulary of a GGUF file, for any rules."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        self.tokens, self.kinds, self.merges = (fields["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type", "merges"))
        assert fields["tokenizer.ggml.model"].contents() == "gpt2"
        assert fields["tokenizer.ggml.pre"].contents() == "smollm"

    def with_rules(self, steps, nfc, ignore_merges):
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        merges = [tuple(merge.split(" ")) for merge in self.merges]
        made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
        if nfc:
            made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.Sequence(steps)
        made.decoder = decoders.ByteLevel()
        special = [token for token, kind in zip(self.tokens, self.kinds) if kind == 3]
        made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        return made

    def dump(self, path):
        with open(path, "wb") as dump:
            dump.write(struct.pack("<II", len(self.tokens), len(self.merges)))
            for token, kind in zip(self.tokens, self.kinds):
                text = token.encode()
                dump.write(struct.pack("<BI", {1: 0, 4: 1, 3: 2}.get(kind, 3), len(text)) + text)
            for merge in self.merges:
                text = merge.encode()
                dump.write(struct.pack("<I", len(text)) + text)


def id_lists(rng, encoded, vocabulary):
    for i, ids in enumerate(encoded):
        if i % 2:
            yield ids
        else:  # single bytes and ids of all kinds, so that characters break
            yield [rng.randrange(600) if rng.randrange(3) else rng.randrange(vocabulary) for _ in range(rng.randint(1, 24))]


# ---- SentencePiece ---------------------------------------------------------------------------------

MARK = "\u2581"


class Marked:
    """A small vocabulary as SentencePiece's BPE leaves them: specials, all bytes, then pieces, the best first."""

    def __init__(self, seed, size):
        rng = random.Random(seed)
        corpus = [MARK + t.replace(" ", MARK) for t in texts(rng, 4000)]
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Split(Regex(f"{MARK}"), "merged_with_next")
        made.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False, max_token_length=24))
        pieces = sorted(made.get_vocab().items(), key=lambda item: item[1])
        pieces = [p for p, _ in pieces if " " not in p and "\0" not in p]
        # Some characters are left to the bytes, and words with marks inside or in a row are there, too.
        pieces = [p for p in pieces if len(p) > 1 or ord(p) < 0x250 or p == MARK or rng.randrange(3)]
        pieces += [MARK * n for n in (2, 3, 4, 8)] + [f"of{MARK}the", f"{MARK}in{MARK}", f"x{MARK}"]
        pieces = list(dict.fromkeys(pieces))
        self.tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
        # Scores of pieces that other pieces consist of come first, as in training; single characters last of all.
        self.scores = [0.0] * 259 + [-float(i) if len(p) > 1 else -1e6 for i, p in enumerate(pieces)]

    def merges(self):
        """As `transformers` makes them of a SentencePiece file."""
        ids = {token: i for i, token in enumerate(self.tokens)}
        found = []
        for token, score in zip(self.tokens[259:], self.scores[259:]):
            halves = [(token[:i], token[i:], score) for i in range(1, len(token))]
            found += sorted((h for h in halves if h[0] in ids and h[1] in ids), key=lambda h: (ids[h[0]], ids[h[1]]))
        found.sort(key=lambda h: (h[2], len(h[0]), len(h[1])), reverse=True)
        return [(left, right) for left, right, _ in found]

    def tokenizer(self, prepend):
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=self.merges(), unk_token="<unk>", fuse_unk=True,
                                               byte_fallback=True))
        if prepend:
            made.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
        else:
            made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                          decoders.Strip(" ", 1, 0)])
        made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in self.tokens[:3]])
        made.add_tokens([AddedToken("[INST]", normalized=False)])
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        return made

    def gguf(self, path):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list(self.tokens + ["[INST]"])
        writer.add_token_scores(self.scores + [0.0])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(self.tokens) - 259) + [4])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()

    def sentencepiece(self, path):
        """The fields that a SentencePiece file has, by their numbers: 0 a number, 2 text or a message, 5 a float."""
        def field(number, value):
            if isinstance(value, float):
                return bytes([number << 3 | 5]) + struct.pack("<f", value)
            if isinstance(value, int):
                return varint(number << 3) + varint(value)
            return varint(number << 3 | 2) + varint(len(value)) + value

        def varint(value):
            return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

        types = [2, 3, 3] + [6] * 256 + [1] * (len(self.tokens) - 259) + [4]
        pieces = zip(self.tokens + ["[INST]"], self.scores + [0.0], types)
        out = b"".join(field(1, field(1, t.encode()) + field(2, s) + field(3, k)) for t, s, k in pieces)
        out += field(2, field(3, 2) + field(35, 1) + field(40, 0) + field(41, 1) + field(42, 2))
        out += field(3, field(1, b"identity") + field(3, 1) + field(4, 0))
        path.write_bytes(out)

    def whole(self, ids):
        """Whether neighbouring bytes are characters, all of them or none: of others a stream says more than `tokenizers`,
        which gives all of them up."""
        run = b""
        for i in [*(i for i in ids if i > 2), 0]:  # specials are gone before anything is decoded
            if 3 <= i < 259:
                run += bytes([i - 3])
                continue
            try:
                run.decode()
            except UnicodeDecodeError:
                if run.decode("utf-8", "ignore"):
                    return False
            run = b""
        return True

    def lists(self, rng, encoded):
        for i, ids in enumerate(encoded):
            if i % 2:
                yield ids
            else:
                yield [rng.randrange(3, 259) if rng.randrange(4) == 0 else rng.randrange(len(self.tokens) + 1)
                       for _ in range(rng.randint(1, 24))]


def check_marked(options):
    """An answer goes on with a text: the tokens of "a" are before each list, and its text is taken away again."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    made, good, digests = Marked(options.seed, 6000), True, {}
    made.gguf(SCRATCH / "marked.gguf")
    made.sentencepiece(SCRATCH / "marked.model")
    (SCRATCH / "marked-config.json").write_text('{"legacy": false}')
    for name, prepend in (("Prepend", True), ("Metaspace", False)):
        path = SCRATCH / f"marked-{name}.json"
        made.tokenizer(prepend).save(str(path))
        theirs = tokenizers.Tokenizer.from_file(str(path))
        before = theirs.encode("a", add_special_tokens=False).ids
        rng = random.Random(options.seed)
        samples = list(texts(rng, options.served if prepend else options.served // 4))
        samples += every_character() if prepend else []
        expected = [e.ids for e in theirs.encode_batch(samples, add_special_tokens=True)]
        # Where a template has written the begin token already, a worker puts no other before it.
        expected = [ids[1:] if ids[:2] == [1, 1] else ids for ids in expected]
        print(f"SentencePiece's spelling, {name}: {len(made.tokens)} tokens", flush=True)
        digests[name], ours = encode_with(options.driver, ["json", path], samples)
        good &= compare("text to ids", ours, expected, samples)
        lists = [ids for ids in made.lists(rng, expected) if made.whole(ids)]
        decoded = [text[1:] for text in theirs.decode_batch([before + ids for ids in lists], skip_special_tokens=True)]
        good &= compare("ids to text", decode_with(options.driver, ["json", path], lists), decoded, lists)
        if prepend:
            digests["GGUF"], ours = encode_with(options.driver, ["gguf", SCRATCH / "marked.gguf"], samples)
            good &= compare("text to ids, by scores", ours, expected, samples)
        # What `transformers` makes of such a file depends on this flag, which is set where there is none.
        config = [] if prepend else [SCRATCH / "marked-config.json"]
        digest, ours = encode_with(options.driver, ["spm", SCRATCH / "marked.model", *config], samples[:options.served // 4])
        good &= compare("text to ids, by tokenizer.model", ours, expected[:len(ours)], samples[:len(ours)])
        good &= digest == digests[name]
    if digests["GGUF"] != digests["Prepend"] or digests["GGUF"] == digests["Metaspace"]:
        print("  the digest says otherwise")
        good = False
    return good


# ---- comparison ------------------------------------------------------------------------------------


def compare(what, ours, theirs, inputs):
    wrong = [i for i in range(len(inputs)) if ours[i] != theirs[i]]
    for i in wrong[:5]:
        print(f"  {what} differs: {ascii(inputs[i])[:300]}\n    ours   {ascii(ours[i])[:300]}\n    theirs {ascii(theirs[i])[:300]}")
    print(f"  {what}: {len(inputs)} compared, {len(wrong)} differ", flush=True)
    return not wrong


def check(name, driver, theirs, arguments, count, seed):
    rng = random.Random(seed)
    samples = list(texts(rng, count)) + list(every_character())
    print(f"{name}: {sum(len(s.encode()) for s in samples)} bytes of text", flush=True)
    expected = [e.ids for e in theirs.encode_batch(samples, add_special_tokens=True)]
    digest, ours = encode_with(driver, arguments, samples)
    good = compare("text to ids", ours, expected, samples)
    lists = list(id_lists(rng, expected, theirs.get_vocab_size()))
    good &= compare("ids to text", decode_with(driver, arguments, lists), theirs.decode_batch(lists, skip_special_tokens=True), lists)
    return good, digest


def check_gguf(options):
    """SmolLM2 itself, from a tokenizer.json and by its rules' name, then its vocabulary under other rules."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    vocabulary = GGUFVocabulary(options.gguf)
    vocabulary.dump(SCRATCH / "smollm2.dump")
    vocabulary.with_rules(*rules()["smollm"]).save(str(SCRATCH / "smollm2.json"))
    theirs = tokenizers.Tokenizer.from_file(str(SCRATCH / "smollm2.json"))
    arguments = ["json", SCRATCH / "smollm2.json"]
    good, digest = check("SmolLM2 from tokenizer.json", options.driver, theirs, arguments, options.count, options.seed)
    for i, (name, steps) in enumerate(rules().items()):
        arguments = ["dump", SCRATCH / "smollm2.dump", name]
        theirs = vocabulary.with_rules(*steps)
        what = f"SmolLM2's vocabulary by the rules {name}"
        count = options.served if name in SERVED else options.count // 4
        fine, other = check(what, options.driver, theirs, arguments, count, options.seed + 1 + i)
        good &= fine
        if (other == digest) != (name == "smollm"):
            print("  the digest says otherwise")
            good = False
    return good


def check_json(options):
    directory = pathlib.Path(options.json)
    files = [directory / name for name in ("tokenizer.json", "tokenizer_config.json")]
    theirs = tokenizers.Tokenizer.from_file(str(files[0]))
    arguments = ["json", *(file for file in files if file.exists())]
    return check(directory.name, options.driver, theirs, arguments, options.count, options.seed)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--gguf", default=os.environ.get("PD_GGUF"), help="a SmolLM2 model (or $PD_GGUF)")
    parser.add_argument("--json", default=os.environ.get("PD_TOKENIZER_DIR"), help="a directory with a tokenizer.json (or $PD_TOKENIZER_DIR)")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--served", type=int, default=25_000, help="strings for the rules of each other family that is served")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    good = check_marked(options)

    if options.gguf:
        good &= check_gguf(options)
    else:
        print("# skip SmolLM2's tokenizer: neither --gguf nor $PD_GGUF names a model")
    if options.json and pathlib.Path(options.json, "tokenizer.json").exists():
        good &= check_json(options)
    else:
        print("# skip a tokenizer.json: neither --json nor $PD_TOKENIZER_DIR names a directory with one")
    sys.exit(0 if good else "the tokenizers differ")


if __name__ == "__main__":
    main()
