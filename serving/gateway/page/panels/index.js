/** One module for each task; a task without a panel has no tab. The order is that of the tabs. */

import answer from "./answer.js";
import caption from "./caption.js";
import chat from "./chat.js";
import classify from "./classify.js";
import detect from "./detect.js";
import embed from "./embed.js";
import fillMask from "./fill_mask.js";
import generate from "./generate.js";
import rerank from "./rerank.js";
import score from "./score.js";
import segment from "./segment.js";
import tag from "./tag.js";
import translate from "./translate.js";
import zeroShot from "./zero_shot.js";

export const PANELS = [
  translate,
  caption,
  zeroShot,
  detect,
  segment,
  generate,
  chat,
  fillMask,
  tag,
  classify,
  embed,
  rerank,
  answer,
  score,
];
