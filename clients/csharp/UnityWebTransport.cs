// Transport for Unity WebGL, which has neither sockets nor threads.
// Not verified: the tests of this repository do not run Unity.
using System;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using UnityEngine;
using UnityEngine.Networking;

namespace Hosting.Game
{
    /// <summary>Sends requests with UnityWebRequest. Call the helper from the main thread.</summary>
    public sealed class UnityWebTransport : ITransport
    {
        public async Task<TransportResponse> SendAsync(TransportRequest request, CancellationToken cancel)
        {
            using (var web = new UnityWebRequest(request.Url, request.Method))
            {
                foreach (var header in request.Headers) web.SetRequestHeader(header.Key, header.Value);
                web.downloadHandler = new DownloadHandlerBuffer();
                if (request.Body != null)
                {
                    web.uploadHandler = new UploadHandlerRaw(Encoding.UTF8.GetBytes(request.Body));
                    web.SetRequestHeader("Content-Type", "application/json");
                }
                using (cancel.Register(web.Abort))
                {
                    UnityWebRequestAsyncOperation sending = web.SendWebRequest();
                    while (!sending.isDone) await Task.Yield();
                }
                cancel.ThrowIfCancellationRequested();
                if (web.responseCode == 0) throw new InvalidOperationException(web.error);
                return new TransportResponse
                {
                    Status = (int)web.responseCode,
                    Body = web.downloadHandler.text ?? "",
                    RetryAfter = web.GetResponseHeader("Retry-After"),
                };
            }
        }

        public async Task DelayAsync(TimeSpan time, CancellationToken cancel)
        {
            double end = Time.realtimeSinceStartupAsDouble + time.TotalSeconds;
            while (Time.realtimeSinceStartupAsDouble < end)
            {
                cancel.ThrowIfCancellationRequested();
                await Task.Yield();
            }
        }
    }
}
