// Copies the Markdown twin of the page. From a plain folder a browser fetches no file, so the twin
// comes as a script. Where the clipboard is refused, the button leads to the twin.
{
  const button = document.querySelector(".copy-markdown");
  const status = button.previousElementSibling;
  const label = [...button.childNodes];
  const { twin } = button.dataset;

  const loaded = () =>
    new Promise((resolve, reject) => {
      if (window.markdownTwin) return resolve();
      const script = document.createElement("script");
      Object.assign(script, { src: `${twin}.js`, onload: resolve, onerror: reject });
      document.head.append(script);
    }).then(() => new Blob([window.markdownTwin], { type: "text/plain" }));

  button.addEventListener("click", async () => {
    try {
      // The item takes a promise: Safari allows a copy only while it handles the click.
      await navigator.clipboard.write([new ClipboardItem({ "text/plain": loaded() })]);
      button.replaceChildren("Copied");
      status.textContent = "Copied";
      setTimeout(() => button.replaceChildren(...label), 3000);
    } catch {
      location.assign(twin);
    }
  });
}
