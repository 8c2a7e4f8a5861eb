/* Lets the search work on pages opened from a disk, where browsers refuse workers: the worker's script runs in a frame. */
class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.scope = frame.contentWindow;
    this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.scope.importScripts = (...addresses) =>
      addresses.reduce((before, each) => before.then(() => this.run(each)), Promise.resolve());
    this.ready = this.run(address);
  }

  run(address) {
    return new Promise((done, failed) => {
      const script = this.scope.document.createElement("script");
      script.src = address;
      script.onload = done;
      script.onerror = failed;
      this.scope.document.body.append(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.scope.frameElement.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
