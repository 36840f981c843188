// Browsers start no worker for a page that was opened from a file. The search then runs in a hidden frame of that page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.hear(data);
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => this.begin();
      inside.document.body.append(script);
    }

    begin() {
      this.begun = true;
      this.waiting.forEach((data) => this.postMessage(data));
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      if (!this.begun) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
