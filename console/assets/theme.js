// Before anything is painted: the theme that was chosen here, if one was.
try {
  const theme = localStorage.getItem("bluecone.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* no storage: the system's theme */ }
document.documentElement.classList.add("js");
