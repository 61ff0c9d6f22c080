"""Code completion: the body of a small function, checked by running it."""

from __future__ import annotations

from functools import partial

from optistack_conformance.evals.items import Item

# Signature with its docstring; the body that is the reference; what must hold.
FUNCTIONS: tuple[tuple[str, str, str], ...] = (
    ("add(a, b)|Return the sum of a and b.", "return a + b", "add(2, 3) == 5 and add(-1, 1) == 0"),
    ("square(x)|Return x squared.", "return x * x", "square(5) == 25 and square(-3) == 9"),
    ("is_even(n)|Return True if n is even.", "return n % 2 == 0", "is_even(4) and not is_even(7)"),
    ("is_odd(n)|Return True if n is odd.", "return n % 2 == 1", "is_odd(3) and not is_odd(8)"),
    ("first(items)|Return the first element of the list.", "return items[0]", "first([7, 8]) == 7"),
    ("last(items)|Return the last element of the list.", "return items[-1]", "last([7, 8, 9]) == 9"),
    ("largest(items)|Return the largest element.", "return max(items)", "largest([3, 9, 2]) == 9"),
    ("smallest(items)|Return the smallest element.", "return min(items)", "smallest([3, 9, 2]) == 2"),
    ("total(items)|Return the sum of the list.", "return sum(items)", "total([1, 2, 3]) == 6 and total([]) == 0"),
    ("count_items(items)|Return the number of elements.", "return len(items)", "count_items([1, 1, 1]) == 3"),
    ("reverse_text(text)|Return the text reversed.", "return text[::-1]", "reverse_text('abc') == 'cba'"),
    ("to_upper(text)|Return the text in upper case.", "return text.upper()", "to_upper('aB') == 'AB'"),
    ("to_lower(text)|Return the text in lower case.", "return text.lower()", "to_lower('aB') == 'ab'"),
    ("sort_numbers(items)|Return the list sorted.", "return sorted(items)", "sort_numbers([3, 1, 2]) == [1, 2, 3]"),
    ("absolute(x)|Return the absolute value of x.", "return abs(x)", "absolute(-4) == 4 and absolute(4) == 4"),
    ("double(x)|Return two times x.", "return 2 * x", "double(21) == 42"),
    ("is_positive(x)|Return True if x is above zero.", "return x > 0", "is_positive(1) and not is_positive(-1)"),
    ("contains(items, x)|Return True if x is in the list.", "return x in items", "contains([1, 2], 2)"),
    ("multiply(a, b)|Return the product of a and b.", "return a * b", "multiply(6, 7) == 42"),
    ("average(items)|Return the mean of the list.", "return sum(items) / len(items)", "average([1, 2, 3]) == 2"),
    ("split_words(text)|Return the list of words.", "return text.split()", "split_words('a b c') == ['a', 'b', 'c']"),
    ("join_words(words)|Join the words with a space.", "return ' '.join(words)", "join_words(['a', 'b']) == 'a b'"),
    ("remove_spaces(text)|Remove all spaces.", "return text.replace(' ', '')", "remove_spaces('a b c') == 'abc'"),
    ("starts_with_a(text)|True if it starts with 'a'.", "return text.startswith('a')", "starts_with_a('ab')"),
    ("unique(items)|Return the set of elements.", "return set(items)", "set(unique([1, 1, 2])) == {1, 2}"),
    ("power(a, b)|Return a to the power of b.", "return a ** b", "power(2, 10) == 1024"),
    ("remainder(a, b)|Return the remainder of a / b.", "return a % b", "remainder(17, 5) == 2"),
    ("swap(a, b)|Return b and a as a tuple.", "return b, a", "tuple(swap(1, 2)) == (2, 1)"),
    ("middle(items)|The element at index len // 2.", "return items[len(items) // 2]", "middle([1, 2, 3]) == 2"),
    ("evens(items)|Only the even numbers.", "return [n for n in items if n % 2 == 0]", "evens([1, 2, 4]) == [2, 4]"),
    ("squares(n)|Squares of 0 to n - 1.", "return [i * i for i in range(n)]", "squares(3) == [0, 1, 4]"),
    ("is_palindrome(text)|True if it reads the same backwards.", "return text == text[::-1]", "is_palindrome('aba')"),
)
SHOT = 'def increment(x):\n    """Return x plus one."""\n    return x + 1\n\n\n'


def items() -> list[Item]:
    return [_item(number, *function) for number, function in enumerate(FUNCTIONS, start=1)]


def _item(number: int, head: str, body: str, test: str) -> Item:
    signature, doc = head.split("|")
    stub = f'def {signature}:\n    """{doc}"""\n    return'
    name = f"code/{number:02d}-{signature.split('(')[0]}"
    return Item(name, SHOT + stub, body.removeprefix("return"), partial(_runs, stub, test), 32)


def _runs(stub: str, test: str, answer: str) -> bool:
    from optistack_conformance.evals.sandbox import passes

    return passes(f"{stub}{answer}\nassert {test}\n")
