/** The start of the page: reads what is served, asks for a key where one is needed. */

import { ApiError, listModels } from "./api.js";
import { button, el } from "./dom.js";
import { apiKey, setApiKey } from "./key.js";
import { keyForm } from "./key_form.js";
import { PANELS } from "./panels/index.js";
import { tabs } from "./tabs.js";
import { taskPanel } from "./task_panel.js";
import { installTheme } from "./theme.js";

const main = document.getElementById("main");
const served = document.getElementById("served");
const forget = document.getElementById("forget-key");

async function start() {
  let models;
  try {
    models = await listModels();
  } catch (error) {
    showFailure(error);
    return;
  }
  forget.hidden = apiKey() === null;
  const panels = PANELS.filter(({ task }) => models.some((model) => model.tasks.includes(task)));
  served.textContent = `${models.length} ${models.length === 1 ? "model" : "models"} served`;
  if (!panels.length) {
    notice("No model is served yet. Export one with triptych export, then load this page again.");
    return;
  }
  main.replaceChildren(tabs(panels.map((panel) => entry(panel, models))));
}

function entry(panel, models) {
  const fitting = models.filter((model) => model.tasks.includes(panel.task));
  return { name: panel.task, title: panel.title, build: () => taskPanel(panel, fitting) };
}

function showFailure(error) {
  served.textContent = "";
  if (error instanceof ApiError && error.status === 401) {
    const isRefused = apiKey() !== null;
    setApiKey(null);
    forget.hidden = true;
    const form = keyForm(isRefused, (key) => {
      setApiKey(key);
      start();
    });
    main.replaceChildren(form);
    form.querySelector("input").focus();
    return;
  }
  notice(error.message, button("Try again", start));
}

function notice(text, ...further) {
  main.replaceChildren(el("div", { class: "notice", role: "alert" }, el("p", {}, text), ...further));
}

forget.addEventListener("click", () => {
  setApiKey(null);
  start();
});
document.addEventListener("triptych:unauthorized", (event) => showFailure(event.detail));
installTheme(document.getElementById("theme"));
start();
