"""Configurations that a network does not compute are refused, and the message names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from export.registry import architecture
from inference.errors import CheckpointError
from tests.export.twin import EXPORTED, TINY_TEXT
from tests.export.twins import twin_of

REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    **{
        f"{name} plain": [
            ({"encoder_layers": 10_001}, "encoder_layers = 10001 is over 10000 layers"),
            ({"decoder_layers": 10_001}, "decoder_layers = 10001 is over 10000 layers"),
        ]
        for name in ("bart", "marian", "blenderbot")
    },
    "mvp plain": [({"use_prompt": True}, "use_prompt = True is not supported")],
    "bigbird_pegasus plain": [
        ({"attention_type": "sparse"}, "attention_type = 'sparse' is not supported, only block_"),
    ],
    "longt5 plain": [
        ({"global_block_size": 12}, "global_block_size = 12 is not supported, only powers of two"),
        ({"encoder_attention_type": "full"}, "encoder_attention_type = 'full' is not supported"),
    ],
    "led plain": [
        ({"attention_window": 5}, "attention_window = 5 must be even"),
        ({"attention_window": [4]}, "attention_window needs 2 numbers"),
        ({"attention_window": "4"}, "attention_window must be a whole number"),
        ({"max_decoder_position_embeddings": 0}, "max_decoder_position_embeddings must be a whole"),
        ({"scale_embedding": True}, "scale_embedding = True is not supported"),
    ],
    "fsmt plain": [
        ({"src_vocab_size": 0}, "src_vocab_size must be a whole number"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings needs one vocabulary, not src_vocab"),
        ({"tgt_vocab_size": "many"}, "tgt_vocab_size must be a whole number"),
    ],
    "seamless_m4t plain": [
        ({"hidden_size": 33}, "hidden_size = 33 is not a multiple of encoder_attention_heads = 4"),
        ({"decoder_layers": 10_001}, "decoder_layers = 10001 is over 10000 layers"),
        ({"architectures": ["SeamlessM4TForSpeechToText"]}, "SeamlessM4TForSpeechToText"),
    ],
    "switch_transformers plain": [
        ({"num_experts": 128}, "num_experts = 128 is not supported, only up to 16 are"),
        ({"expert_capacity": 0}, "expert_capacity must be a whole number"),
        ({"router_dtype": "bfloat16"}, "router_dtype = 'bfloat16' is not supported"),
        ({"encoder_sparse_step": -1}, "encoder_sparse_step must be a whole number"),
        ({"num_sparse_decoder_layers": None, "decoder_sparse_step": 1.5}, "decoder_sparse_step"),
    ],
    "t5gemma plain": [
        ({"encoder": {"layer_types": ["full"]}}, "config.json, encoder: layer_types must have one"),
        ({"decoder": {"num_key_value_heads": 3}}, "config.json, decoder: num_attention_heads = 4"),
        ({"decoder": {"use_bidirectional_attention": True}}, "use_bidirectional_attention = True"),
        ({"architectures": ["T5GemmaForTokenClassification"]}, "T5GemmaForTokenClassification"),
    ],
    "prophetnet plain": [
        ({"pad_token_id": 3}, "pad_token_id = 3 is not supported"),
        ({"add_cross_attention": False}, "add_cross_attention = False is not supported"),
        ({"num_buckets": 1}, "num_buckets = 1 must be at least 2"),
        ({"relative_max_distance": 3}, "relative_max_distance = 3 more than half of it"),
        ({"max_position_embeddings": 2}, "max_position_embeddings = 2 must be at least 3"),
        ({"ngram": 0}, "ngram must be a whole number"),
        ({"hidden_size": 33}, "hidden_size = 33 is not a multiple of num_encoder_attention_heads"),
    ],
    "t5gemma2 plain": [
        ({"encoder": {"text_config": {"layer_types": ["full"]}}}, "text_config: layer_types must"),
        ({"decoder": {"attn_logit_softcapping": 2.0}}, "attn_logit_softcapping = 2.0 is not supp"),
        ({"decoder": {"hidden_size": 64}}, r"must be equal, not \(32, 64\) and \(64, 64\)"),
        ({"encoder": {"eoi_token_index": "5"}}, "encoder: eoi_token_index must be a whole number"),
        ({"image_token_index": 64}, "image_token_index = 64 is outside the vocabulary of 64"),
        ({"encoder": {"mm_tokens_per_image": 9}}, "encoder: mm_tokens_per_image = 9, but the 4 x"),
        ({"encoder": {"vision_config": {"model_type": "vit"}}}, "'vit'"),
        ({"architectures": ["T5Gemma2ForTokenClassification"]}, "T5Gemma2ForTokenClassification"),
    ],
    "pegasus_x plain": [({"block_size": 5}, "block_size = 5 must be even")],
    "encoder-decoder plain": [
        ({"encoder": {"model_type": "t5"}}, "encoder: model_type 't5' is not supported"),
        ({"decoder": {"model_type": "xlnet"}}, "decoder: model_type 'xlnet' is not supported"),
        ({"encoder": {"is_decoder": True}}, "encoder: is_decoder = True is not supported"),
        ({"decoder": {"cross_attention_hidden_size": 20}}, "cross_attention_hidden_size = 20"),
        ({"architectures": ["BertModel"]}, "only EncoderDecoderModel is"),
    ],
    "blip odd": [
        (
            {"architectures": ["BlipForQuestionAnswering"]},
            "BlipForQuestionAnswering is not supported",
        ),
    ],
    "blip retrieval": [
        (
            {"text_config": {**TINY_TEXT, "is_decoder": False}},
            "is_decoder = False is not supported",
        ),
        ({"image_text_hidden_size": 0}, "image_text_hidden_size must be a whole number ≥ 1"),
    ],
    "align plain": [
        ({"projection_dim": 15}, "projection_dim = 15, and images have vectors of 16"),
        ({"architectures": ["AlignTextModel"]}, "AlignTextModel is not supported"),
        *(
            (
                {
                    "vision_config": {
                        **twin_of("align").configs["plain"]["vision_config"],
                        **changed,
                    }
                },
                text,
            )
            for changed, text in (
                ({"pooling_type": "max"}, "pooling_type = 'max' is not supported"),
                ({"strides": [1, 2, 3]}, "strides must be 1 or 2"),
                ({"kernel_sizes": [3, 4, 3]}, "kernel_sizes odd"),
                ({"kernel_sizes": [3, 5]}, "need one number a stage"),
                ({"in_channels": [32, 8, 8]}, "in_channels must be 32 and out_channels"),
                ({"depth_coefficient": 1e6}, "at most 1000"),
                ({"num_block_repeats": [1, 2, 10_001]}, "over 10000 blocks"),
                ({"width_coefficient": 0}, "factors must be over 0"),
            )
        ),
    ],
    "groupvit plain": [
        ({"architectures": ["GroupViTVisionModel"]}, "GroupViTVisionModel is not supported"),
        *(
            (
                {
                    "vision_config": {
                        **twin_of("groupvit").configs["plain"]["vision_config"],
                        **changed,
                    }
                },
                text,
            )
            for changed, text in (
                ({"num_group_tokens": [6, 3]}, "num_group_tokens needs 3 numbers"),
                ({"num_output_groups": [6, -3, 3]}, "num_output_groups needs 3 numbers"),
                ({"num_group_tokens": [6, 0, 3]}, "must be over 0 in the first stages"),
                ({"num_group_tokens": [0, 0, 0]}, "must be over 0 in the first stages"),
                ({"num_output_groups": [6, 0, 3]}, "must be over 0 in the first stages"),
                ({"num_output_groups": [5, 3, 3]}, "must be num_group_tokens in front of another"),
                ({"assign_mlp_ratio": [0.5]}, "assign_mlp_ratio must be two numbers"),
                ({"assign_mlp_ratio": [0.001, 4]}, "assign_mlp_ratio must be two numbers"),
                ({"assign_eps": 0.0}, "assign_eps must be positive"),
                ({"assign_mlp_ratio": "4"}, "assign_mlp_ratio must be two numbers"),
                ({"depths": [1, 9_999, 1]}, "depths are over 10000 layers"),
                ({"num_channels": 1}, "num_channels = 1 is not supported"),
            )
        ),
    ],
    "vilt plain": [
        ({"architectures": ["ViltForMaskedLM"]}, "architectures = ViltForMaskedLM is not"),
        ({"max_image_length": 200}, "max_image_length = 200 is not supported, only -1 is"),
        ({"modality_type_vocab_size": 1}, "modality_type_vocab_size must be a whole number ≥ 2"),
        ({"image_size": [32, 32]}, "image_size must be a whole number"),
    ],
    "lxmert plain": [
        ({"architectures": ["LxmertForPreTraining"]}, "supported are: LxmertForQuestionAnswering"),
        ({"visual_pos_dim": 5}, "visual_pos_dim = 5 is not supported, only 4 is"),
        ({"x_layers": 0}, "x_layers must be a whole number ≥ 1"),
        ({"visual_feat_dim": "7"}, "visual_feat_dim must be a whole number"),
        ({"num_qa_labels": 1_000_001}, "over 1000000 classes"),
        ({"id2label": 9}, "id2label must name the classes, not 9"),
    ],
    "visual_bert plain": [
        *(
            ({"architectures": [f"VisualBertFor{head}"]}, f"VisualBertFor{head} is not supported")
            for head in ("MultipleChoice", "RegionToPhraseAlignment", "PreTraining")
        ),
        ({"bypass_transformer": True}, "bypass_transformer = True is not supported"),
        ({"type_vocab_size": 1}, "type_vocab_size must be a whole number ≥ 2"),
    ],
    "vision-encoder-decoder trocr": [
        ({"encoder": {"model_type": "beit"}}, "encoder: model_type 'beit' is not supported"),
        ({"decoder": {"model_type": "xlnet"}}, "decoder: model_type 'xlnet' is not supported"),
        ({"decoder": {"cross_attention_hidden_size": 20}}, "cross_attention_hidden_size = 20"),
        ({"encoder": {"image_size": 1.5}}, "encoder: image_size must be one or two sizes, not 1.5"),
    ],
    "vision-encoder-decoder roberta": [
        ({"decoder": {"pad_token_id": [3]}}, "decoder: pad_token_id must be a whole number"),
    ],
    "show-and-tell plain": [
        ({"channels": [6]}, "one number a convolution"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
    ],
    "cnn-transformer plain": [
        ({"strides": []}, "one number a convolution"),
        ({"nhead": 5}, "32"),
        ({"norm_first": True}, "norm_first"),
    ],
    "florence2 plain": [
        ({"image_token_id": 64}, "image_token_id = 64 is outside the vocabulary of 64"),
        ({"text_config": {"model_type": "t5"}}, "'t5'"),
        ({"vision_config": {"dim_embed": [128]}}, "florence-community"),
        ({"vision_config": {"projection_dim": 8}}, "projection_dim = 8 is not supported"),
        ({"vision_config": {"num_heads": [5, 2]}}, "5 heads do not share out width 12"),
        ({"vision_config": {"num_groups": [2, 3]}}, "3 heads do not share out width 20"),
        ({"vision_config": {"depths": [1]}}, "one value a stage"),
        ({"vision_config": {"patch_padding": [-1, 0]}}, "patch_padding must be a list"),
    ],
    "pix2struct plain": [
        ({"text_config": {"d_kv": 5}}, "d_kv = 5"),
        ({"text_config": {"is_decoder": False}}, "is_decoder"),
        ({"vision_config": {"patch_embed_hidden_size": 10}}, "is not of whole pixels"),
        ({"text_config": {"relative_attention_num_buckets": 2}}, "must be at least 4"),
        ({"architectures": ["Pix2StructForQuestions"]}, "Pix2StructForQuestions"),
        ({"architectures": [1]}, "architectures must be a list of names"),
    ],
    "show-attend-tell plain": [
        ({"channels": [6]}, "one number a convolution"),
        ({"strides": [2, "2"]}, "strides must be a list of sizes"),
        ({"channels": None}, "channels must be a list of sizes"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
    ],
    "grounding-dino plain": [
        ({"architectures": ["GroundingDinoForSegmentation"]}, "only classes that end in"),
        ({"two_stage": False}, "two_stage = False is not supported"),
        ({"position_embedding_type": "learned"}, "position_embedding_type = 'learned'"),
        ({"backbone_config": {"model_type": "resnet"}}, "backbone_config: model_type = 'resnet'"),
        ({"backbone_config": {"out_features": ["stage9"]}}, "'stage9'.* are not stages"),
        ({"text_config": {"model_type": "roberta"}}, "text_config: model_type = 'roberta'"),
        ({"d_model": 40}, "d_model must be a multiple of 32"),
        ({"encoder_attention_heads": 5}, "heads do not share out"),
        ({"num_feature_levels": 1}, "num_feature_levels = 1"),
    ],
    "clipseg plain": [
        ({"architectures": ["CLIPSegModel"]}, "CLIPSegModel is not supported"),
        ({"extract_layers": [1, 0]}, "extract_layers must be blocks of the tower, 0 to 1"),
        ({"extract_layers": [2]}, "extract_layers must be blocks"),
        ({"extract_layers": []}, "extract_layers must be blocks"),
        ({"conditional_layer": 2}, "conditional_layer must be 0 to 1"),
        (
            {"vision_config": {"image_size": [32, 64], "patch_size": 32}},
            "1 x 2 patches are not square",
        ),
    ],
    "open_clip vit": [
        ({"model_cfg": {"custom_text": True}}, "custom_text = True"),
        ({"model_cfg": {"multimodal_cfg": {"layers": 2}}}, "multimodal_cfg = .* is not supported"),
        ({"model_cfg": {"init_logit_bias": -10}}, "init_logit_bias = -10"),
        (
            {"model_cfg": {"text_cfg": {"hf_model_name": "roberta-base"}}},
            "text_cfg: hf_model_name = 'roberta-base'",
        ),
        (
            {"model_cfg": {"text_cfg": {"hf_tokenizer_name": "t5-base"}}},
            "hf_tokenizer_name = 't5-base'",
        ),
        (
            {"model_cfg": {"text_cfg": {"pool_type": "last"}}},
            "pool_type = 'last' is not supported, only 'argmax'",
        ),
        ({"model_cfg": {"text_cfg": {"no_causal_mask": True}}}, "no_causal_mask = True"),
        ({"model_cfg": {"text_cfg": {"embed_cls": True}}}, "embed_cls = True"),
        ({"model_cfg": {"text_cfg": {"heads": 7}}}, "7 heads do not share out width 30"),
        ({"model_cfg": {"text_cfg": {"act_kwargs": {"approximate": "tanh"}}}}, "act_kwargs"),
        (
            {"model_cfg": {"vision_cfg": {"timm_model_name": "convnext_base"}}},
            "vision_cfg: timm_model_name",
        ),
        ({"model_cfg": {"vision_cfg": {"attentional_pool": True}}}, "attentional_pool = True"),
        (
            {"model_cfg": {"vision_cfg": {"pool_type": "avg"}}},
            "pool_type = 'avg' is not supported, only 'tok' is",
        ),
        ({"model_cfg": {"vision_cfg": {"no_ln_pre": True}}}, "no_ln_pre = True"),
        ({"model_cfg": {"vision_cfg": {"ls_init_value": 0.1}}}, "ls_init_value = 0.1"),
        ({"model_cfg": {"vision_cfg": {"qk_norm": True}}}, "qk_norm = True"),
        (
            {"model_cfg": {"vision_cfg": {"global_average_pool": True}}},
            "global_average_pool = True",
        ),
        (
            {"model_cfg": {"vision_cfg": {"rope": True, "alibi": 1}}},
            "vision_cfg: unknown fields: alibi, rope",
        ),
        ({"model_cfg": {"text_cfg": {"rope": True}}}, "text_cfg: unknown fields: rope"),
        ({"model_cfg": {"audio_cfg": {}}}, "model_cfg: unknown fields: audio_cfg"),
        (
            {"model_cfg": {"vision_cfg": {"head_width": 7}}},
            "width 36 is no multiple of head_width 7",
        ),
        (
            {"model_cfg": {"vision_cfg": {"norm_kwargs": {"bias": False}}}},
            "norm_kwargs may hold eps only",
        ),
    ],
    "open_clip odd": [
        (
            {"model_cfg": {"vision_cfg": {"layers": [3, 4, 6]}}},
            r"layers must be 4 numbers, not \(3, 4, 6\)",
        ),
        ({"model_cfg": {"vision_cfg": {"image_size": [64, 96]}}}, "a ResNet takes square images"),
        ({"model_cfg": {"vision_cfg": {"image_size": 63}}}, "image_size = 63 is not supported"),
        ({"model_cfg": {"vision_cfg": {"width": 3}}}, "width = 3 must be even"),
        ({"model_cfg": {"vision_cfg": {"head_width": 24}}}, "a multiple of head_width = 24"),
    ],
    "owlvit plain": [
        ({"architectures": ["OwlViTModel"]}, "OwlViTModel is not supported"),
        ({"projection_dim": 20}, "hidden_size must be projection_dim = 20"),
        ({"vision_config": {"num_channels": 1}}, "num_channels"),
    ],
    "owlv2 plain": [
        ({"architectures": ["OwlViTForObjectDetection"]}, "only Owlv2ForObjectDetection"),
    ],
    "chinese_clip odd": [
        ({"architectures": ["ChineseCLIPTextModel"]}, "only ChineseCLIPModel is"),
        ({"text_config": {"position_embedding_type": "relative_key"}}, "text_config: position_emb"),
        ({"text_config": {"num_attention_heads": 7}}, "text_config: hidden_size = 30 is not a"),
    ],
    "altclip odd": [
        ({"architectures": ["AltCLIPVisionModel"]}, "only AltCLIPModel is"),
        ({"text_config": {"project_dim": 0}}, "text_config: project_dim must be"),
    ],
    "siglip odd": [
        ({"architectures": ["SiglipForImageClassification"]}, "SiglipForImageClassification is"),
        ({"vision_config": {"vision_use_head": False}}, "vision_use_head = False"),
        ({"text_config": {"projection_size": 20}}, "projection_size = 20"),
    ],
    "siglip2 odd": [
        ({"architectures": ["Siglip2ForImageClassification"]}, "only Siglip2Model is"),
        (
            {
                "vision_config": {
                    **twin_of("siglip2").configs["odd"]["vision_config"],
                    "num_patches": 26,
                }
            },
            "vision_config: num_patches = 26 is no square",
        ),
    ],
    "levit odd": [
        (
            {"image_size": 4000, "patch_size": 1, "stride": 1},
            "makes 4000 rows of patches, more than 32",
        ),
    ],
    "perceiver odd": [
        ({"architectures": ["PerceiverForOpticalFlow"]}, "optical flow and .* are not"),
        ({"architectures": ["PerceiverForMultimodalAutoencoding"]}, "multimodal autoencoding are"),
        ({"architectures": ["PerceiverModel"]}, "'PerceiverModel'. is not supported .optical flow"),
        ({"architectures": None}, "is not supported .optical flow"),
        ({"v_channels": 60}, "v_channels = 60 must be d_latents = 30"),
        ({"v_channels": None}, "v_channels = 60 must be d_latents = 30"),
        ({"num_self_attention_heads": 7}, "7 heads do not share out width 30"),
        ({"d_model": 36}, "8 heads do not share out width 36"),
        ({"cross_attention_shape_for_attention": "v"}, "only kv, q"),
    ],
    "blip-2 plain": [
        ({"image_token_index": 64}, "image_token_index = 64 is outside the vocabulary of 64"),
        ({"text_config": {"model_type": "llama"}}, "'llama'"),
        ({"text_config": {"hidden_size": 8, "word_embed_proj_dim": 4}}, "word_embed_proj_dim = 4"),
        ({"architectures": ["Blip2ForImageTextRetrieval"]}, "Blip2ForImageTextRetrieval"),
    ],
    "gemma3 plain": [
        ({"image_token_index": 64}, "image_token_index = 64 is outside the vocabulary of 64"),
        ({"eoi_token_index": 64}, "eoi_token_index = 64 is outside"),
        ({"mm_tokens_per_image": 9}, "mm_tokens_per_image = 9, but the 4 x 4 patches"),
        ({"text_config": {"model_type": "gemma2"}}, "gemma2"),
        ({"text_config": {"final_logit_softcapping": 4.0}}, "final_logit_softcapping"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "clip_vision_model"),
        ({"architectures": ["Gemma3ForSequenceClassification"]}, "Gemma3ForSequence"),
    ],
    "gemma3_text odd": [
        ({"rope_parameters": 3}, "rope parameters must be a dictionary, not 3"),
        ({"rope_parameters": {"full_attention": 3}}, "must be a dictionary, not 3"),
        ({"rope_parameters": {"sliding_attention": [3]}}, r"must be a dictionary, not \[3\]"),
        ({"rope_scaling": "linear"}, "must be a dictionary, not 'linear'"),
    ],
    "idefics plain": [
        ({"additional_vocab_size": 1}, "image_token_id = 61 is outside the vocabulary of 60"),
        ({"cross_layer_interval": 2}, "num_hidden_layers = 1 is not a multiple"),
        ({"alpha_type": "matrix"}, "alpha_type = 'matrix' is not supported"),
        ({"num_attention_heads": 5}, "5 heads do not share out width 24"),
        ({"architectures": ["IdeficsForQuestions"]}, "IdeficsForQuestions"),
        ({"eos_token_id": []}, r"eos_token_id must be the id of a token.* not \[\]"),
        ({"eos_token_id": ["2"]}, "eos_token_id must be the id of a token"),
    ],
    "idefics2 plain": [
        ({"image_token_id": 64}, "image_token_id = 64 is outside the vocabulary of 64"),
        ({"perceiver_config": {"num_key_value_heads": 3}}, "resampler_n_heads = 4 is not a mult"),
        ({"vision_config": {"image_size": 3}}, "an image of 3 x 3 holds no patch of 4 x 4"),
        ({"vision_config": {"num_channels": 1}}, "num_channels = 1"),
        ({"text_config": {"model_type": "gemma"}}, "'gemma'"),
        ({"architectures": ["Idefics2ForQuestions"]}, "Idefics2ForQuestions"),
    ],
    "idefics3 plain": [
        ({"image_token_id": 64}, "image_token_id = 64 is outside the vocabulary of 64"),
        ({"scale_factor": 3}, "scale_factor = 3 does not divide the 4 patches in a row"),
        ({"text_config": {"model_type": "gemma"}}, "'gemma'"),
        ({"architectures": ["Idefics3ForQuestions"]}, "Idefics3ForQuestions"),
    ],
    "instructblip plain": [
        ({"text_config": {"model_type": "bart"}}, "'bart'"),
    ],
    "modernbert odd": [
        ({"rope_parameters": 3}, "config.json: rope parameters must be a dictionary, not 3"),
        ({"rope_parameters": {"full_attention": 3}}, "rope parameters must be a dictionary, not 3"),
        ({"rope_parameters": {"sliding_attention": ["x"]}}, r"a dictionary, not \['x'\]"),
        ({"rope_scaling": "linear"}, "rope parameters must be a dictionary, not 'linear'"),
    ],
    "llama longrope": [
        (
            {"rope_parameters": {"original_max_position_embeddings": 1}},
            "original_max_position_embeddings = 1 must be at least 2",
        ),
    ],
    "qwen2 odd": [({"max_window_layers": "1"}, "max_window_layers must be a number, not '1'")],
    "llava plain": [
        ({"image_token_index": 64}, "image_token_index = 64 is outside the vocabulary of 64"),
        ({"vision_feature_layer": -5}, "vision_feature_layer = -5 is outside the 3 blocks"),
        ({"vision_feature_layer": []}, r"vision_feature_layer = \[\] is outside"),
        ({"text_config": {"model_type": "gemma"}}, "'gemma'"),
        ({"vision_config": {"model_type": "pixtral"}}, "pixtral"),
        ({"architectures": ["LlavaForQuestions"]}, "LlavaForQuestions"),
    ],
    "llava_next plain": [
        ({"image_grid_pinpoints": [[8, 12]]}, "only heights and widths of 1 to 16 times 8"),
        ({"image_grid_pinpoints": []}, "image_grid_pinpoints"),
        ({"vision_feature_select_strategy": "full"}, "one vector for each patch"),
    ],
    "llava_onevision plain": [
        ({"vision_aspect_ratio": "pad"}, "vision_aspect_ratio = 'pad' is not supported"),
        ({"vision_aspect_ratio": "anyres_max_0"}, "only anyres_max_1 to anyres_max_99"),
        ({"image_grid_pinpoints": [[8, 12]]}, "only heights and widths of 1 to 16 times 8"),
        ({"text_config": {"model_type": "gemma"}}, "'gemma'"),
    ],
    "paligemma plain": [
        ({"image_token_index": 64}, "image_token_index = 64 is outside the vocabulary of 64"),
        ({"text_config": {"model_type": "llama"}}, "'llama'"),
        ({"text_config": {"use_bidirectional_attention": False}}, "use_bidirectional_attention"),
        ({"projection_dim": 7}, "projection_dim = 7"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "clip_vision_model"),
    ],
    "qwen2_vl plain": [
        ({"image_token_id": 64}, "image_token_id = 64 is outside the vocabulary of 64"),
        ({"architectures": ["Qwen2VLForQuestions"]}, "Qwen2VLForQuestions"),
        (
            {"text_config": {"rope_parameters": {"mrope_section": [2, 1]}}},
            "must add up to the 4 pairs",
        ),
        ({"text_config": {"rope_parameters": {"mrope_section": 4}}}, "mrope_section"),
        ({"vision_config": {"in_channels": 1}}, "in_channels = 1"),
        ({"vision_config": {"num_heads": 5}}, "20 heads do not share out width 24"),
        ({"vision_config": {"hidden_size": 30}}, "hidden_size = 30"),
        (
            {"vision_config": {"rope_parameters": 3}},
            "vision_config: rope parameters must be",
        ),
        ({"text_config": {"rope_parameters": [3]}}, "text_config: rope parameters must be"),
    ],
    "qwen2_5_vl plain": [
        ({"vision_config": {"window_size": 7}}, "window_size = 7 is smaller than one"),
        ({"vision_config": {"fullatt_block_indexes": 3}}, "must be a list of blocks"),
        ({"vision_config": {"out_hidden_size": 30}}, "out_hidden_size = 30"),
    ],
    "mllama plain": [
        ({"image_token_index": 69}, "image_token_index = 69 is outside the vocabulary of 69"),
        ({"architectures": ["MllamaForQuestions"]}, "MllamaForQuestions"),
        ({"text_config": {"head_dim": 8}}, "head_dim = 8"),
        ({"text_config": {"cross_attention_layers": [0, 2]}}, "the first layer attends to text"),
        ({"text_config": {"cross_attention_layers": [3, 1]}}, "a growing list of layers 0 to 3"),
        ({"text_config": {"cross_attention_layers": []}}, r"a growing list .* not \[\]"),
        ({"text_config": {"cross_attention_layers": 3}}, "a growing list .* not 3"),
        ({"vision_config": {"intermediate_layers_indices": [2]}}, "growing list of layers 0 to 1"),
        ({"vision_config": {"intermediate_layers_indices": [0, 1]}}, "is not the 72 of 3 outputs"),
        ({"vision_config": {"max_num_tiles": 3}}, "all canvases with max_num_tiles = 3"),
        ({"vision_config": {"max_num_tiles": 17}}, "max_num_tiles = 17, at most 16"),
        ({"vision_config": {"supported_aspect_ratios": [[1, 1]]}}, r"= \[\[1, 1\]\] is not"),
        ({"vision_config": {"num_channels": 1}}, "num_channels = 1"),
        ({"vision_config": {"norm_eps": 0.0}}, "norm_eps must be positive"),
    ],
    "internvl plain": [
        ({"downsample_ratio": 0.3}, "downsample_ratio = 0.3 is not supported for 4 x 4 patches"),
        ({"downsample_ratio": 0}, "downsample_ratio = 0 is not"),
        ({"vision_config": {"image_size": 12}}, "downsample_ratio = 0.5 .* 3 x 3 patches"),
        ({"vision_feature_layer": -2}, "vision_feature_layer = -2"),
        ({"vision_config": {"norm_type": "batch_norm"}}, "norm_type = 'batch_norm'"),
        (
            {"vision_config": {"use_absolute_position_embeddings": False}},
            "use_absolute_position_embeddings = False",
        ),
        ({"text_config": {"model_type": "gpt_oss"}}, "'gpt_oss'"),
        ({"image_token_id": 64}, "image_token_id = 64 is outside"),
    ],
    "qwen3_vl plain": [
        ({"vision_config": {"out_hidden_size": 30}}, "out_hidden_size = 30"),
        ({"vision_config": {"num_position_embeddings": 15}}, "= 15 is not a square's"),
        ({"vision_config": {"deepstack_visual_indexes": 3}}, "growing list of at most 2 of the 2"),
        ({"vision_config": {"deepstack_visual_indexes": [1, 0]}}, r"growing list .* not \[1, 0\]"),
        ({"vision_config": {"deepstack_visual_indexes": [2]}}, r"growing list .* not \[2\]"),
        (
            {"text_config": {"rope_parameters": {"mrope_interleaved": False}}},
            "mrope_interleaved = False",
        ),
        ({"text_config": {"rope_parameters": {"mrope_section": [2, 1]}}}, "add up to the 4 pairs"),
    ],
}
"""Architecture and configuration of its twin → changes, and what the message says."""

ACTIVATIONS = {
    **dict.fromkeys(("bert", "electra", "llama", "perceiver", "swin", "vit"), "hidden_act"),
    **dict.fromkeys(("bart", "marian", "gpt2", "gpt_neo", "opt"), "activation_function"),
    **dict.fromkeys(("gemma2", "modernbert"), "hidden_activation"),
    **dict.fromkeys(("distilbert", "transformer"), "activation"),
    **{"openai-gpt": "afn", "xlnet": "ff_activation"},
}
"""Architecture → the field that names the non-linearity of its blocks."""


def _changed(values: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Values with a change; sections keep their other fields."""
    sections = {
        name: _changed(values[name], value)
        for name, value in change.items()
        if isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
    }
    return {**values, **change, **sections}


@pytest.mark.parametrize(
    ("twin", "change", "message"),
    [(twin, *row) for twin, rows in REFUSED.items() for row in rows],
)
def test_what_the_network_lacks_is_refused_by_name(
    twin: str, change: dict[str, Any], message: str
) -> None:
    name, config = twin.split()
    declared = architecture(name)
    with pytest.raises(CheckpointError, match=message):
        declared.read_config(_changed(twin_of(name).configs[config], change))


@pytest.mark.parametrize(("name", "field"), ACTIVATIONS.items())
def test_unknown_activation_is_refused_by_the_name_of_its_field(name: str, field: str) -> None:
    declared = architecture(name)
    values = {**twin_of(name).configs[EXPORTED], field: "mish"}
    with pytest.raises(CheckpointError, match=rf"^config.json: {field} = 'mish' is not supported"):
        declared.read_config(values)


def test_source_of_bigbird_pegasus_is_as_long_as_its_attention_is_full() -> None:
    values = twin_of("bigbird_pegasus").configs["plain"]
    sparse = {**values, "max_position_embeddings": 4096, "block_size": 64, "num_random_blocks": 3}
    limits = {
        kind: architecture("bigbird_pegasus").read_config({**sparse, "attention_type": kind}).limits
        for kind in ("block_sparse", "original_full")
    }
    assert limits["block_sparse"].max_input_tokens == 704
    assert limits["original_full"].max_input_tokens == 4096
