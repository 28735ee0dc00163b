"""Prompts: a seeded list of questions, requests for code, and lists, from templates."""

from __future__ import annotations

import itertools
import random
from typing import Final

CHAT: Final = (
    "What is {}?",
    "Explain {} to a child.",
    "Why does {} matter?",
    "How did {} change over the last hundred years?",
    "Tell me something surprising about {}.",
    "Write a short paragraph about {}.",
    "I want to learn about {}. Where do I start?",
    "What do people often get wrong about {}?",
    "Write a friendly email in which you ask a colleague about {}.",
    "Describe {} in three sentences.",
    "Compare {} with {}.",
    "What would the world be like without {}?",
    "Write a short story in which {} plays a part.",
    "Summarise what you know about {}.",
    "Is {} a good topic for a talk at school? Say why.",
    "Give me advice: I have to explain {} to my grandmother.",
)
LISTS: Final = (
    "List five facts about {}.",
    "Give me ten ideas that have to do with {}.",
    "Name seven things that one needs for {}.",
    "Write a numbered list of steps for someone who is new to {}.",
    "List the advantages and disadvantages of {}.",
    "Make a table that compares {} and {}.",
    "Write a checklist for a day about {}.",
    "What are the main parts of {}? Answer with bullet points.",
    "List six questions that a test about {} could ask, with answers.",
    "Give me a plan for one week to learn about {}, day by day.",
)
CODE: Final = (
    "Write a Python function that {}.",
    "Write a Python function that {}, with a docstring and an example.",
    "Write a JavaScript function that {}.",
    "Write a C program that {}.",
    "Write a Python class that {}.",
    "Show me code that {}, and explain it line by line.",
    "Write a unit test in Python for a function that {}.",
    "How do I write a program that {}?",
)
TOPICS: Final = (
    *("the water cycle", "photosynthesis", "gravity", "the moon", "volcanoes", "earthquakes"),
    *("the human heart", "sleep", "memory", "vaccines", "vitamins", "bees", "whales", "dogs"),
    *("cats", "birds in winter", "forests", "deserts", "the ocean", "rivers", "the weather"),
    *("climate change", "electricity", "magnets", "batteries", "solar panels", "wind power"),
    *("steam engines", "bicycles", "trains", "airplanes", "bridges", "clocks", "maps", "paper"),
    *("printing", "the telephone", "radio", "television", "computers", "the internet"),
    *("search engines", "artificial intelligence", "robots", "video games", "chess", "music"),
    *("the piano", "the guitar", "jazz", "opera", "painting", "photography", "film", "poetry"),
    *("novels", "libraries", "museums", "schools", "universities", "teaching", "mathematics"),
    *("prime numbers", "geometry", "statistics", "probability", "algebra", "physics"),
    *("chemistry", "biology", "astronomy", "history", "ancient Rome", "ancient Egypt"),
    *("the Middle Ages", "the Renaissance", "the industrial revolution", "democracy", "laws"),
    *("money", "banks", "taxes", "insurance", "small businesses", "marketing", "negotiation"),
    *("job interviews", "time management", "friendship", "families", "cooking", "bread"),
    *("coffee", "tea", "cheese", "chocolate", "soup", "vegetables", "gardening", "compost"),
    *("running", "swimming", "yoga", "football", "hiking", "camping", "travel by train"),
    *("learning a language", "public speaking", "writing letters", "first aid", "healthy food"),
    *("recycling", "cities", "farms", "houses", "furniture", "clothes", "shoes", "toys"),
    *("a birthday party", "a picnic", "moving to a new town", "saving energy", "a school garden"),
)
TASKS: Final = (
    *("adds two numbers", "reverses a string", "counts the vowels in a text", "sorts a list"),
    *("finds the largest number in a list", "checks whether a number is prime"),
    *("computes a factorial", "prints the Fibonacci numbers", "checks for palindromes"),
    *("counts words in a file", "reads a CSV file", "writes lines to a file"),
    *("merges two sorted lists", "removes duplicates from a list", "searches a sorted list"),
    *("computes the mean and the median", "converts Celsius to Fahrenheit"),
    *("multiplies two matrices", "transposes a matrix", "draws a triangle of stars"),
    *("implements a stack", "implements a queue", "implements a linked list"),
    *("walks a binary tree", "finds the shortest path in a graph", "solves a maze"),
    *("parses a date", "formats money", "validates an email address", "makes a password"),
    *("rolls dice", "plays rock, paper, scissors", "guesses a number", "keeps a to-do list"),
    *("keeps a bank account", "sends a request to a web server", "reads JSON"),
    *("finds anagrams", "encodes a text with the Caesar cipher", "counts the letters of a text"),
    *("groups words by their first letter", "flattens nested lists", "zips two lists"),
    *("measures how long a function takes", "retries a call that fails", "caches results"),
    *("finds all files in a folder", "renames files", "splits a text into sentences"),
    *("computes the greatest common divisor", "converts numbers to binary", "sums the digits"),
    *("simulates a traffic light", "models a library with books", "keeps students and marks"),
)
HELD_OUT: Final = 7
"""Every seventh topic and task is kept from training, with all prompts about it."""


def training_prompts(seed: int) -> list[str]:
    """All prompts but the held-out ones, in an order drawn from `seed`.

    Kinds take turns, so that any front of the list holds as much chat as code and lists.
    """
    return _shuffled(seed, held_out=False)


def held_out_prompts(seed: int) -> list[str]:
    """The prompts whose topics no training prompt has, in an order drawn from `seed`."""
    return _shuffled(seed, held_out=True)


def _shuffled(seed: int, *, held_out: bool) -> list[str]:
    draws = random.Random(seed)  # noqa: S311 - an order, no secret
    topics, tasks = _half(TOPICS, held_out=held_out), _half(TASKS, held_out=held_out)
    kinds = [_filled(CHAT, topics), _filled(CODE, tasks), _filled(LISTS, topics)]
    for kind in kinds:
        draws.shuffle(kind)
    turns = itertools.zip_longest(*kinds)
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def _half(words: tuple[str, ...], *, held_out: bool) -> list[str]:
    return [word for at, word in enumerate(words) if (at % HELD_OUT == 0) is held_out]


def _filled(templates: tuple[str, ...], words: list[str]) -> list[str]:
    """Each template with each word; one with two places gets the next word too."""
    pairs = list(zip(words, words[1:] + words[:1], strict=True))
    return [template.format(*pair) for template in templates for pair in pairs]
