"""What answers of the steerer hold."""

from poolbench_steerer.http.answers import TokenizerInfo


def test_a_model_with_several_chat_templates_has_an_answer():
    info = {"tokenizer_class": "T", "vocab_size": 2, "chat_template": {"default": "x", "tool_use": "y"}}
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    assert TokenizerInfo(**info, **special).chat_template == {"default": "x", "tool_use": "y"}
