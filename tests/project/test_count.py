from tests.project.count import longest_chain


def test_the_longest_chain_of_imports_goes_through_the_most_modules():
    pairs = [("a", "d"), ("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("x", "d")]
    assert longest_chain(pairs) == ("a", "b", "c", "d")


def test_what_imports_nothing_has_no_chain():
    assert longest_chain([]) == ()
