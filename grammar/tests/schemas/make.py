#!/usr/bin/env python3
"""Makes the schemas of this directory: `[{schema, tests: [{valid, data}]}]` in one file per
subject. Needs `jsonschema` (pip), which labels the instances; the test labels them again with
another implementation. Run in this directory: `python make.py`.
"""

import itertools
import json
import pathlib
import random

import jsonschema

FILES = {}


def add(subject, schema, good=(), bad=()):
    """One schema, with instances that must be valid and others that must not."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    for data, valid in [(d, True) for d in good] + [(d, False) for d in bad]:
        assert validator.is_valid(data) == valid, (schema, data)
    tests = [{"valid": True, "data": d} for d in good] + [{"valid": False, "data": d} for d in bad]
    FILES.setdefault(subject, []).append({"schema": schema, "tests": tests})


def label(subject, schema, data):
    """One schema, with instances that are labelled here."""
    validator = jsonschema.Draft202012Validator(schema)
    good = [d for d in data if validator.is_valid(d)]
    add(subject, schema, good, [d for d in data if d not in good or not validator.is_valid(d)])


def obj(required=None, closed=True, **properties):
    schema = {"type": "object", "properties": properties}
    schema["required"] = list(properties) if required is None else required
    if closed:
        schema["additionalProperties"] = False
    return schema


SAMPLES = {
    "null": [None],
    "boolean": [True, False],
    "integer": [0, -7, 123456789],
    "number": [0.5, -3.25, 2, 1e3],
    "string": ["", "a", "two words", "é😀", 'q"\\\n\t/'],
    "array": [[], [1, "a", None], [[[]]]],
    "object": [{}, {"a": 1, "b": {"c": []}}],
}
MIXED = [None, True, 0, -1, 1.5, "", "a", [], [1], {}, {"a": 1}]

INTEGER, STRING, BOOLEAN, NULL = ({"type": t} for t in ("integer", "string", "boolean", "null"))


def types():
    for name, good in SAMPLES.items():
        others = [v for other, values in SAMPLES.items() for v in values[:2] if other != name]
        if name == "number":
            others = [v for v in others if isinstance(v, (bool, str, list, dict)) or v is None]
        if name == "integer":
            others = [v for v in others if not isinstance(v, (int, float)) or isinstance(v, bool)]
            others.append(0.5)
        add("type", {"type": name}, good, others)
    for pair in itertools.combinations(["null", "boolean", "integer", "string", "array"], 2):
        label("type", {"type": list(pair)}, MIXED)
    label("type", {}, MIXED)
    label("type", {"type": ["null", "boolean", "number", "string", "array", "object"]}, MIXED)


def values():
    constants = [None, True, False, 0, -12, 3.5, "", "a", "é😀", 'say "hi"\n', "a/b\\c", [], [1, [2]],
                 {}, {"a": [True], "b": "c"}, "x" * 200]
    for value in constants:
        add("const", {"const": value}, [value], [v for v in MIXED if v != value or type(v) is not type(value)][:6])
    lists = [["a", "b"], ["a", "ab", "abc"], [1, 2, 30], [None, True, "x", 1.5], [[1], [1, 2]],
             [{"a": 1}, {"a": 2}], ["é", "è", "e"], ["", " "], list("abcdefghij"), [f"v{i}" for i in range(60)]]
    for choices in lists:
        add("enum", {"enum": choices}, choices[:5], ["nope", 99, [], {"z": 1}, "abcd"])
    add("enum", {"type": "string", "enum": ["a", "b"]}, ["a", "b"], ["c", 1])
    add("enum", {"type": "integer", "enum": [1, 2, "x"]}, [1, 2], ["x", 3])
    add("const", {"type": "string", "const": "a"}, ["a"], ["b", 1])


def numbers():
    for low, high in [(0, 9), (-5, 5), (1, 1), (10, 99), (-100, -10), (7, 1234), (0, 255), (-1, 1000000)]:
        probe = [low - 1, low, low + 1, (low + high) // 2, high - 1, high, high + 1, low - 1000, high * 10 + 7]
        label("integer", {"type": "integer", "minimum": low, "maximum": high}, list(dict.fromkeys(probe)))
        label("integer", {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 2},
              list(dict.fromkeys([low, low + 1, high, high + 1, high + 2])))
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]:
        for bound in [0, -3, 42]:
            label("integer", {"type": "integer", key: bound}, [bound - 11, bound - 1, bound, bound + 1, bound + 99])
            label("number", {"type": "number", key: bound}, [bound - 1.5, bound - 0.25, bound, bound + 0.25, bound + 7.75])
    for low, high in [(0, 1), (-1.5, 2.5), (0.25, 0.75), (10, 10.5), (-2.5, -0.5)]:
        label("number", {"type": "number", "minimum": low, "maximum": high},
              [low, high, (low + high) / 2, low - 0.125, high + 0.125, low - 10, high + 10])
    for multiple in [1, 2, 3, 5, 7, 10, 12, 25, 100, 365]:
        label("multipleOf", {"type": "integer", "multipleOf": multiple},
              [0, multiple, multiple * 3, multiple * 17, -multiple, multiple + 1, multiple * 4 - 1])
    for multiple in [0.5, 0.25, 0.125]:
        label("multipleOf", {"type": "number", "multipleOf": multiple}, [0, multiple, 1.5, 2, 0.3, 1.1, multiple / 2])
    label("multipleOf", {"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 30}, [10, 15, 30, 5, 12, 35])
    label("number", {"type": "number"}, [0, -1, 1.5, 1e-3, 12345.678, "1", None])


def strings():
    lengths = [(0, 0), (1, 1), (0, 3), (2, 5), (3, None), (None, 10), (64, 64)]
    for low, high in lengths:
        schema = {"type": "string"}
        schema.update({"minLength": low} if low is not None else {})
        schema.update({"maxLength": high} if high is not None else {})
        label("length", schema, ["", "a", "ab", "abc", "é😀", "abcde", "abcdef", "x" * 11, "x" * 64, 'a"\\', 5])
    patterns = {
        "^a+$": ["a", "aaa", "b", "", "aab"],
        "^[A-Z][a-z]+$": ["Harry", "harry", "H", "HA"],
        "b": ["b", "abc", "ac", ""],
        "^ab": ["ab", "abz", "zab"],
        "ab$": ["ab", "zab", "abz"],
        "^(yes|no|maybe)$": ["yes", "no", "maybe", "yesno", ""],
        "^[0-9]{3}-[0-9]{4}$": ["555-0199", "5550199", "55-0199"],
        "^[a-f0-9]{8}$": ["deadbeef", "DEADBEEF", "deadbee"],
        "^.{2,4}$": ["ab", "éé", "abcd", "a", "abcde"],
        "^$": ["", "a"],
        "^(a|b)*c$": ["c", "abac", "ab", "cc"],
        "^#([0-9a-fA-F]{3}){1,2}$": ["#fff", "#A1B2C3", "#ffff", "fff"],
        "^v\\d+\\.\\d+\\.\\d+$": ["v1.2.3", "1.2.3", "v1.2"],
        "^[^,]+(,[^,]+)*$": ["a", "a,b,c", ",a", "a,,b"],
        "^\\S+@\\S+$": ["a@b", "a b@c", "@b"],
        "^(?:x{2}|y{3,})$": ["xx", "yyy", "yyyyy", "xxx", "yy"],
        "^[àéîôù]+$": ["é", "àù", "e", ""],
        "^\"quoted\"$": ['"quoted"', "quoted"],
        "^a\\\\b$": ["a\\b", "ab"],
        "^line\\nbreak$": ["line\nbreak", "line break"],
        "^[\\w-]+\\.(js|ts)$": ["a-b.ts", "x.js", "x.py", ".js"],
        "^(https?)://[a-z.]+/?$": ["http://a.b", "https://x/", "ftp://x"],
    }
    for pattern, data in patterns.items():
        label("pattern", {"type": "string", "pattern": pattern}, data + [7])
    label("pattern", {"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 4}, ["a", "aa", "aaaa", "aaaaa", "ab"])
    label("pattern", {"type": "string", "pattern": "[0-9]", "maxLength": 3}, ["1", "a1b", "abc", "a1bc"])
    formats = {
        "date": (["2026-11-21", "1999-01-31"], ["2026-13-01", "2026-1-1", "today", "2026-11-32"]),
        "time": (["12:30:00Z", "23:59:59+02:00"], ["25:00:00Z", "noon"]),
        "date-time": (["2026-11-21T12:30:00Z"], ["2026-11-21", "2026-11-21 at noon"]),
        "duration": (["P1Y", "PT3H", "P1DT12H"], ["1Y", "P"]),
        "email": (["a@example.com", "first.last@example.org"], ["nobody", "@example.com"]),
        "hostname": (["example.com", "a-b.example"], ["-a.example", "a..b"]),
        "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "a.b.c.d"]),
        "ipv6": (["::1", "2001:db8::1", "fe80:0:0:0:0:0:0:1"], ["12345::", ":::"]),
        "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "123e4567-e89b-12d3-a456-42661417400z"]),
        "uri": (["https://example.com/a?b=c#d", "urn:isbn:0451450523"], ["no uri", "//"]),
    }
    for name, (good, bad) in formats.items():
        for schema in ({"type": "string", "format": name}, {"type": ["string", "null"], "format": name}):
            FILES.setdefault("format", []).append({
                "schema": schema,
                "tests": [{"valid": True, "data": d} for d in good] + [{"valid": False, "data": d} for d in bad + [1]],
            })


def arrays():
    for items, good, bad in [(INTEGER, [1, -2], ["a"]), (STRING, ["a", "é"], [1]), (BOOLEAN, [True, False], [0]),
                             (NULL, [None], [0]), ({"enum": [1, "b"]}, [1, "b"], ["c"])]:
        for low, high in [(None, None), (1, None), (None, 2), (1, 3), (2, 2), (0, 0)]:
            schema = {"type": "array", "items": items}
            schema.update({"minItems": low} if low is not None else {})
            schema.update({"maxItems": high} if high is not None else {})
            run = [(good * 4)[:n] for n in range(5)]
            label("items", schema, run + [bad, good + bad, {}, "x"])
    label("items", {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}, "maxItems": 2},
          [[], [[]], [[1, 2], [3]], [[1, 2, 3]], [1], [[], [], []]])
    pairs = [INTEGER, STRING]
    for extra in [True, False, BOOLEAN]:
        for low in [0, 1, 2]:
            schema = {"type": "array", "prefixItems": pairs, "items": extra, "minItems": low}
            label("prefixItems", schema, [[], [1], [1, "a"], ["a"], ["a", 1], [1, "a", True], [1, "a", 5], [1, 2]])
    label("prefixItems", {"type": "array", "prefixItems": [NULL, obj(a=INTEGER)], "items": False, "minItems": 2},
          [[None, {"a": 1}], [None], [None, {"a": "x"}], [None, {"a": 1}, 2]])
    label("prefixItems", {"type": "array", "prefixItems": [{"const": i} for i in range(6)], "maxItems": 4},
          [[], [0], [0, 1, 2, 3], [0, 1, 2, 3, 4], [1]])


def objects():
    a, ab, abc = {"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": True}
    probe = [{}, a, ab, abc, {"b": "x"}, {"a": "x"}, {"a": 1, "z": 0}, {"c": True}, [], "a"]
    for required in [[], ["a"], ["b"], ["a", "b"], ["a", "b", "c"]]:
        for closed in [True, False]:
            label("properties", obj(required, closed, a=INTEGER, b=STRING, c=BOOLEAN), probe)
    for extra in [INTEGER, STRING, {"type": ["null", "boolean"]}, {"enum": [0, 1]}]:
        label("additionalProperties", {"type": "object", "additionalProperties": extra},
              [{}, {"k": 1}, {"k": 1, "l": 0}, {"k": "x"}, {"k": None}, {"k": 2.5}])
        label("additionalProperties", {"type": "object", "properties": {"a": BOOLEAN}, "required": ["a"], "additionalProperties": extra},
              [{"a": True}, {"a": True, "k": 1}, {"a": True, "k": "x"}, {"a": 1}, {"k": 1}, {"a": False, "k": None}])
    label("additionalProperties", {"type": "object", "additionalProperties": False}, [{}, {"a": 1}, [], None])
    label("required", {"type": "object", "required": ["a", "b"]}, [{"a": 1, "b": 2}, {"a": 1}, {}, {"a": 1, "b": 2, "c": 3}])
    label("required", {"type": "object", "properties": {"a": INTEGER}, "required": ["z"]}, [{"a": 1, "z": 2}, {"z": 0}, {"a": 1}])
    for patterns in [{"^x_": INTEGER}, {"^x_": INTEGER, "^y_": STRING}, {"^[a-z]$": BOOLEAN}, {"_id$": {"type": "string", "maxLength": 3}}]:
        for closed in [True, False]:
            schema = {"type": "object", "patternProperties": patterns}
            schema.update({"additionalProperties": False} if closed else {})
            label("patternProperties", schema,
                  [{}, {"x_1": 1}, {"x_1": "a"}, {"y_1": "a"}, {"y_1": 1}, {"a": True}, {"a": 1}, {"x_1": 1, "y_1": "b"},
                   {"the_id": "abc"}, {"the_id": "abcd"}, {"zz": 0}])
    label("patternProperties", {"type": "object", "properties": {"x_0": STRING}, "patternProperties": {"^y_": INTEGER}, "required": ["x_0"]},
          [{"x_0": "a"}, {"x_0": "a", "y_1": 1}, {"x_0": "a", "y_1": "b"}, {"y_1": 1}])
    for low, high in [(0, 1), (1, 2), (2, 2), (1, None), (None, 3), (0, 0)]:
        schema = {"type": "object", "additionalProperties": INTEGER}
        schema.update({"minProperties": low} if low is not None else {})
        schema.update({"maxProperties": high} if high is not None else {})
        label("minProperties", schema, [{f"k{i}": i for i in range(n)} for n in range(5)] + [{"k": "x"}])
    for name in ["é", "with space", 'quo"te', "sl/ash", "til~de", "back\\slash", "line\nbreak", "", "😀", "a.b", "$ref"]:
        label("names", obj(**{name: INTEGER}), [{name: 1}, {name: "x"}, {}, {name + "x": 1}])
    nested = NULL
    for depth in range(1, 11):
        nested = obj(n=nested)
        good = None
        for _ in range(depth):
            good = {"n": good}
        label("nesting", nested, [good, {"n": 1}, {}, {"n": {"m": 1}}])


def combined():
    either = [(INTEGER, STRING), (NULL, {"type": "array", "items": INTEGER}), ({"const": 1}, {"const": "1"}),
              ({"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 8}),
              (obj(a=INTEGER), obj(b=INTEGER)), ({"type": "string", "maxLength": 1}, {"enum": ["long"]})]
    probe = MIXED + [1, "1", 5, 9, "long", {"b": 1}, [1, 2], ["a"], "ab"]
    for branches in either:
        label("anyOf", {"anyOf": list(branches)}, probe)
        label("anyOf", {"type": "array", "items": {"anyOf": list(branches)}, "maxItems": 2}, [[p] for p in probe] + [[]])
        label("anyOf", obj(v={"anyOf": [*branches, BOOLEAN]}), [{"v": p} for p in probe])
    for branches in [(INTEGER, STRING), (NULL, BOOLEAN), ({"const": "a"}, {"const": "b"}),
                     (obj(kind={"const": "x"}, x=INTEGER), obj(kind={"const": "y"}, y=STRING)),
                     ({"type": "array", "items": INTEGER}, STRING)]:
        label("oneOf", {"oneOf": list(branches)}, probe + ["b", {"kind": "x", "x": 1}, {"kind": "y", "y": "s"}, {"kind": "x", "y": "s"}])
        label("oneOf", obj(v={"oneOf": list(branches)}), [{"v": p} for p in probe])
    joined = [({"type": "integer", "minimum": 3}, {"maximum": 6}), ({"type": "string", "minLength": 2}, {"maxLength": 4}),
              ({"type": ["integer", "string"]}, {"type": ["string", "null"]}), ({"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}),
              (obj(["a"], False, a=INTEGER), obj(["b"], False, b=STRING)), ({"type": "array", "items": INTEGER}, {"maxItems": 2}),
              ({"type": "string", "pattern": "^a"}, {"pattern": "b$"}), ({"multipleOf": 2, "type": "integer"}, {"multipleOf": 3})]
    for parts in joined:
        label("allOf", {"allOf": list(parts)}, [2, 3, 6, 7, 12, "a", "ab", "aXb", "abcd", "abcde", None, {"a": 1, "b": "x"}, {"a": 1}, [1], [1, 2, 3], ["a"]])
        label("allOf", obj(v={"allOf": list(parts)}), [{"v": v} for v in [2, 3, 6, 7, "ab", "abcdef", None, {"a": 1, "b": "x"}, [1, 2, 3]]])
    label("allOf", {"type": "integer", "minimum": 0, "allOf": [{"maximum": 9}, {"multipleOf": 3}]}, [0, 3, 9, 4, 12, -3])


def references():
    tree = {"$defs": {"tree": obj(["v"], v=INTEGER, kids={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2})},
            "$ref": "#/$defs/tree"}
    label("ref", tree, [{"v": 1}, {"v": 1, "kids": []}, {"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": [{"v": 4}]}]},
                        {"kids": []}, {"v": 1, "kids": [{}]}, {"v": 1, "kids": [{"v": 1}] * 3}])
    chain = obj(["v"], v=INTEGER, next={"anyOf": [{"$ref": "#"}, NULL]})
    label("ref", chain, [{"v": 1}, {"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": {"v": 3}}}, {"v": 1, "next": 2}, {"v": 1, "next": {}}])
    for key in ["$defs", "definitions"]:
        for name in ["a", "with space", "sl~1ash", "é"]:
            real = name.replace("~1", "/")
            pointer = name.replace(" ", "%20").replace("é", "%C3%A9")
            label("ref", {key: {real: {"type": "integer", "minimum": 5}}, "$ref": f"#/{key}/{pointer}"}, [5, 99, 4, "5"])
    label("ref", {"$defs": {"p": {"$anchor": "pos", "type": "integer", "minimum": 1}}, "items": {"$ref": "#pos"}, "type": "array"},
          [[], [1, 2], [0], ["a"]])
    label("ref", obj(["a", "b"], a=obj(x=STRING), b={"$ref": "#/properties/a"}), [{"a": {"x": "1"}, "b": {"x": "2"}}, {"a": {"x": "1"}, "b": {}}])
    label("ref", {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 2}, ["", "ab", "abc", 1])
    label("ref", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"enum": [1, "c"]}}, "type": "array", "items": {"$ref": "#/$defs/a"}},
          [[], [1, "c"], [2]])
    label("ref", {"$defs": {"even": {"anyOf": [NULL, obj(n={"$ref": "#/$defs/odd"})]}, "odd": obj(n={"$ref": "#/$defs/even"})}, "$ref": "#/$defs/even"},
          [None, {"n": {"n": None}}, {"n": None}, {"n": {"n": {"n": None}}}])


def notes():
    for extra in [{"title": "t"}, {"description": "d"}, {"default": 5}, {"examples": [1]}, {"deprecated": True}, {"$comment": "c"},
                  {"readOnly": True}, {"x-anything": {"not": {}}}, {"$schema": "https://json-schema.org/draft/2020-12/schema"}]:
        label("notes", {"type": "integer", "minimum": 0, **extra}, [0, 7, -1, "a"])


def realistic():
    weather = obj(name={"const": "get_weather"}, arguments=obj(["city"], city={"type": "string", "minLength": 1}, unit={"enum": ["C", "F"]}))
    light = obj(name={"const": "set_light"}, arguments=obj(room=STRING, percent={"type": "integer", "minimum": 0, "maximum": 100}))
    calls = [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}, {"name": "set_light", "arguments": {"room": "hall", "percent": 40}}]
    wrong = [{"name": "get_weather", "arguments": {}}, {"name": "set_light", "arguments": {"room": "hall", "percent": 140}}, {"name": "other", "arguments": {}}]
    label("realistic", {"anyOf": [weather, light]}, calls + wrong)
    label("realistic", {"type": "array", "items": {"anyOf": [weather, light]}, "minItems": 1, "maxItems": 3}, [calls, calls[:1], [], wrong[:1], calls * 2])
    label("realistic", obj(thought=STRING, call={"oneOf": [weather, light]}), [{"thought": "", "call": c} for c in calls + wrong])
    person = obj(["name", "age"], name={"type": "string", "pattern": "^[A-Z][a-z]+$"}, age={"type": "integer", "minimum": 0, "maximum": 150},
                 tags={"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3}, address=obj(street=STRING, zip={"type": "string", "pattern": "^[0-9]{5}$"}))
    label("realistic", person, [{"name": "Ada", "age": 36}, {"name": "Ada", "age": 36, "tags": ["x"], "address": {"street": "s", "zip": "12345"}},
                                {"name": "ada", "age": 36}, {"name": "Ada", "age": 200}, {"name": "Ada", "age": 1, "tags": ["123456789"]},
                                {"name": "Ada", "age": 1, "address": {"street": "s", "zip": "1234"}}])
    for n in [5, 20, 60, 150]:
        wide = obj(**{f"field_{i}": [STRING, INTEGER, BOOLEAN][i % 3] for i in range(n)})
        good = {f"field_{i}": ["s", i, True][i % 3] for i in range(n)}
        label("realistic", wide, [good, {**good, "field_0": 1}, dict(list(good.items())[:-1]), {**good, "extra": 1}])
        optional = obj([], **{f"field_{i}": INTEGER for i in range(n)})
        label("realistic", optional, [{}, {"field_0": 1}, {"field_1": 1, f"field_{n - 1}": 2}, {"field_0": "x"}, {"other": 1}])


def refused():
    """Keywords that cannot be enforced: the whole schema is refused, with their place."""
    unsupported = [{"not": INTEGER}, {"if": INTEGER, "then": {"minimum": 1}}, {"if": INTEGER, "else": STRING}, {"dependentRequired": {"a": ["b"]}},
                   {"dependentSchemas": {"a": {"required": ["b"]}}}, {"contains": INTEGER}, {"uniqueItems": True}, {"propertyNames": {"maxLength": 3}},
                   {"unevaluatedProperties": False}, {"unevaluatedItems": False}, {"minContains": 1, "contains": INTEGER}]
    for keyword in unsupported:
        for place in [lambda s: s, lambda s: obj(p=s), lambda s: {"type": "array", "items": s}, lambda s: {"anyOf": [NULL, s]}]:
            label("refused", place(keyword), MIXED)
    overlapping = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]}
    for place in [lambda s: s, lambda s: obj(p=s), lambda s: obj(a=obj(b={"type": "array", "items": s}))]:
        label("refused", place(overlapping), MIXED + [{"p": 5}, {"p": 50}])
        label("refused", place({"type": "object", "patternProperties": {"^a": INTEGER, "b$": STRING}}), MIXED + [{"p": {"ab": 1}}])
        label("refused", place({**obj([], a=INTEGER, b=INTEGER), "additionalProperties": True, "minProperties": 2}), MIXED)


def made():
    """Random combinations of all that is supported."""
    rng = random.Random(7)

    def schema(depth):
        kinds = ["integer", "number", "string", "boolean", "null", "enum"]
        kinds += ["object", "object", "array", "anyOf"] if depth else []
        kind = rng.choice(kinds)
        if kind == "integer":
            low = rng.randint(-50, 50)
            return {"type": kind, "minimum": low, "maximum": low + rng.randint(0, 200)}
        if kind == "string":
            low = rng.randint(0, 3)
            return rng.choice([{"type": kind}, {"type": kind, "minLength": low, "maxLength": low + rng.randint(0, 6)}, {"type": kind, "pattern": "^[a-c]{1,4}$"}])
        if kind == "enum":
            return {"enum": rng.sample(["a", "b", 1, 2, None, True, "long text", 3.5], rng.randint(1, 4))}
        if kind == "object":
            names = rng.sample(["id", "name", "kind", "size", "note", "é"], rng.randint(1, 4))
            required = [n for n in names if rng.random() < 0.6]
            return obj(required, rng.random() < 0.8, **{n: schema(depth - 1) for n in names})
        if kind == "array":
            return {"type": kind, "items": schema(depth - 1), "maxItems": rng.randint(1, 3)}
        if kind == "anyOf":
            return {"anyOf": [schema(depth - 1) for _ in range(rng.randint(2, 3))]}
        return {"type": kind}

    def instance(s):
        if "enum" in s:
            return rng.choice(s["enum"])
        if "anyOf" in s:
            return instance(rng.choice(s["anyOf"]))
        kind = s["type"]
        if kind == "integer":
            return rng.randint(s["minimum"] - (rng.random() < 0.1), s["maximum"] + (rng.random() < 0.1))
        if kind == "number":
            return rng.choice([0, 1.5, -2.25, 100])
        if kind == "string":
            if "pattern" in s:
                return "".join(rng.choice("abcd" if rng.random() < 0.1 else "abc") for _ in range(rng.randint(1, 4)))
            return "".join(rng.choice("xyz é") for _ in range(rng.randint(s.get("minLength", 0), s.get("maxLength", 8))))
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "array":
            return [instance(s["items"]) for _ in range(rng.randint(0, s["maxItems"]))]
        if kind == "object":
            kept = [n for n in s["properties"] if n in s["required"] or rng.random() < 0.5]
            return {n: instance(s["properties"][n]) for n in kept}
        return None

    def spoiled(value):
        if isinstance(value, dict) and value:
            name = rng.choice(list(value))
            return {**value, name: spoiled(value[name])}
        if isinstance(value, list) and value:
            return [spoiled(value[0])] + value[1:]
        return rng.choice([None, -999, "something else", [], {"z": 1}])

    for _ in range(60):
        s = schema(3)
        data = [instance(s) for _ in range(4)]
        label("made", s, data + [spoiled(d) for d in data])


if __name__ == "__main__":
    for make in [types, values, numbers, strings, arrays, objects, combined, references, notes, realistic, refused, made]:
        make()
    here = pathlib.Path(__file__).parent
    for subject, entries in FILES.items():
        lines = ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries)
        (here / f"{subject}.json").write_text(f"[\n{lines}\n]\n")
    schemas = sum(map(len, FILES.values()))
    tests = sum(len(e["tests"]) for entries in FILES.values() for e in entries)
    print(f"{schemas} schemas, {tests} instances")
