/** The theme button: the system's theme, light, or dark. */

const KEY = "triptych-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const LABELS = { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

/** Each press of `button` applies and stores the next theme. */
export function installTheme(button) {
  const root = document.documentElement;
  let theme = root.dataset.theme ?? "system";
  const label = () => {
    button.textContent = LABELS[theme];
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    store(theme);
    label();
  });
  label();
}

function store(theme) {
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Storage is blocked: the choice lasts until the page is closed.
  }
}
