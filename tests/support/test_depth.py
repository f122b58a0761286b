from tests.support.depth import is_sampled


def test_of_each_few_cases_one_is_chosen_and_never_none_of_a_test():
    for test in map(str, range(50)):
        for cases in range(1, 20):
            chosen = [index for index in range(cases) if is_sampled(test, index, cases, 3)]
            assert cases // 3 <= len(chosen) <= cases // 3 + 1
            assert chosen


def test_tests_with_a_case_for_each_database_take_turns():
    assert {index for test in map(str, range(20)) for index in range(3) if is_sampled(test, index, 3, 3)} == {
        0,
        1,
        2,
    }
