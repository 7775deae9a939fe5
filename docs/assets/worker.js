// Browsers allow no worker on pages that are opened from a folder (file://). The search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.body.appendChild(document.createElement("iframe"))
      this.frame.hidden = true
      const inside = this.frame.contentWindow
      inside.postMessage = message => this.deliver(this, message) // what the worker's code sends
      inside.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.ready = this.load(new URL(url, document.baseURI).href)
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        Object.assign(script, { src: url, onload: resolve, onerror: reject })
        this.frame.contentDocument.body.appendChild(script)
      })
    }
    deliver(target, data) {
      setTimeout(() => target.dispatchEvent(new MessageEvent("message", { data })), 0)
    }
    postMessage(message) {
      this.ready.then(() => this.deliver(this.frame.contentWindow, message))
    }
    set onmessage(handler) { this.addEventListener("message", handler) }
    set onerror(handler) { this.addEventListener("error", handler) }
    terminate() { this.frame.remove() }
  }
  window.Worker = window.IFrameWorker
}
