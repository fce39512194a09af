"""Texts of other systems in messages."""

import pytest

from watcher.core.messages import hide_secrets


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("no response in time from the server", ["t"], "no response in time from the server"),
        ("Authorization: Bearer t", ["t"], "Authorization: Bearer ***"),
        ('bad header {"token":"abc"} of a bcabc', ["abc"], 'bad header {"token":"***"} of a bcabc'),
        ("token=abc&x=abcd", ["abc"], "token=***&x=abcd"),
        ("abcdefg within xabcdefgx", ["abcdefg"], "*** within x***x"),
        ("Basic dTpw is u:p", ["dTpw", "p", ""], "Basic *** is u:***"),
        ("secret-and-more", ["secret", "secret-and-more"], "***"),
        ("a.b*c", [".*"], "a.b*c"),
        ("password admin rejected", ["admin"], "password *** rejected"),
        ("Cookie admin, p%3Dadmin", ["admin"], "Cookie ***, p%3D***"),
        ("administrators of x.admin", ["admin"], "administrators of x.***"),
        ("of x$ab", ["$ab"], "of x***"),
        ("a gateway has rejected Bearer a", ["a"], "a gateway has rejected Bearer ***"),
    ],
)
def test_secrets_are_hidden_and_other_words_are_not(text: str, secrets: list[str], shown: str):
    assert hide_secrets(text, secrets) == shown
