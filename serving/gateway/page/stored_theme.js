// Applies the stored theme before the first paint; a module would run after it.
(() => {
  try {
    const stored = localStorage.getItem("triptych-theme");
    if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
  } catch {
    // Storage is blocked: the system's theme applies.
  }
})();
