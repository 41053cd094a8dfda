"""Detection of texts that reveal the answer: exact values for numbers, the words themselves for anything else.

A value that the question already states is not a leak: showing it again reveals nothing.
Left out: answers worked out in words, or revealed by an expression that is never evaluated (`30*40`).
"""

from gradus.data.answers import normalised_gold, number, numbers_in


def leaks(text: str, answer: str, question: str) -> bool:
    """Return whether `text` states `answer` although `question` does not.

    >>> leaks("so there are 1,200 of them", "1200", "How many?")
    True
    >>> leaks("12 boys and 1200 girls", "12", "There are 12 boys. How many?")
    False
    """
    value = number(answer)
    if value is None:
        gold = _folded(answer)
        return bool(gold) and gold in _folded(text) and gold not in _folded(question)
    if all(stated != value for _, stated in numbers_in(text)):
        return False
    return all(stated != value for _, stated in numbers_in(question))


def _folded(text: str) -> str:
    return "".join(normalised_gold(text).casefold().split())
