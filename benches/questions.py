"""48 prompts of the kinds that hearth-tiny knows, for the scripts that compare greedy texts."""

ANIMALS = "fox squirrel owl turtle dragon elephant".split()
PLACES = ["in a garden", "high on a mountain", "by the sea", "in a small village"]
PROMPTS = [f"Tell me a story about a {animal} {place}." for animal in ANIMALS for place in PLACES]
PROMPTS += [f"Please do you know a story that happens {place}?" for place in PLACES]
PROMPTS += [f"What does {a} + {b} make?" for a, b in [(6, 9), (3, 4), (17, 5), (8, 8)]]
PROMPTS += [f"Which sound does a {animal} make?" for animal in ["pig", "dog", "cow", "cat"]]
PROMPTS += [
    "Hello!",
    "Who are you?",
    "what is the internet",
    "Can you write a poem about the moon?",
    "Another story!",
    "Why is the sky blue?",
    "Write a story that begins with rain.",
    "Count to twenty.",
    "Return the city and pet as JSON: Thooll, 15, lives in Kriekdrornfield. He has a horse.",
    "The meeting with Jeaxvouth is on Sunday at 6. Write the event, day, hour and name as JSON.",
    "Do you know the name of the king of France?",
    "Tell me everything about turtles, please, and then a long story about two of them.",
]
