// Draws the diagrams of a page if Mermaid can be loaded; without a network their source stays.
const address = document.currentScript.dataset.script;
document.addEventListener("DOMContentLoaded", () => {
  const script = document.createElement("script");
  script.src = address;
  script.onload = () => {
    for (const block of document.querySelectorAll(".mermaid-source")) {
      const drawing = document.createElement("pre");
      drawing.className = "mermaid";
      drawing.textContent = block.querySelector("pre").textContent;
      block.replaceWith(drawing);
    }
    const dark = document.body.dataset.theme === "dark" ||
      (document.body.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    mermaid.initialize({
      startOnLoad: false,
      theme: dark ? "dark" : "neutral",
      flowchart: { useMaxWidth: false },  // wide ones scroll instead of shrinking
    });
    mermaid.run({ querySelector: "pre.mermaid" });
  };
  document.head.append(script);
});
