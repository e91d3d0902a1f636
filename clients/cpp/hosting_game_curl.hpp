// Transport of `hosting_game.hpp` for libcurl 7.68 or newer. Link with -lcurl.
#pragma once

#include <curl/curl.h>

#include <cctype>
#include <memory>
#include <stdexcept>
#include <string>

#include "hosting_game.hpp"

namespace hosting {

// Each request has a connection of its own, so that a cancelled call closes its connection.
class CurlTransport : public Transport {
 public:
  CurlTransport() {
    static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (started != CURLE_OK) throw std::runtime_error("libcurl does not start");
  }

  Response send(const Request& request, const Cancellation& cancellation) override {
    std::unique_ptr<CURLM, decltype(&curl_multi_cleanup)> multi(curl_multi_init(), curl_multi_cleanup);
    std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy(curl_easy_init(), curl_easy_cleanup);
    curl_slist* lines = nullptr;
    for (const auto& [name, value] : request.headers) lines = curl_slist_append(lines, (name + ": " + value).c_str());
    lines = curl_slist_append(lines, "Expect:");
    std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(lines, curl_slist_free_all);
    Response response;
    CURL* handle = easy.get();
    curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, append);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &response.body);
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, read_header);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, &response.retry_after);
    if (request.method != "GET") {
      curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
      curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.c_str());
    }
    curl_multi_add_handle(multi.get(), handle);
    const CURLcode result = run(multi.get(), cancellation);
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(multi.get(), handle);
    if (result != CURLE_OK) throw std::runtime_error(curl_easy_strerror(result));
    response.status = static_cast<int>(status);
    return response;
  }

 private:
  static constexpr int kCancellationPollMs = 50;

  static CURLcode run(CURLM* multi, const Cancellation& cancellation) {
    for (int running = 1; running;) {
      if (cancellation.is_cancelled()) return CURLE_ABORTED_BY_CALLBACK;
      if (curl_multi_perform(multi, &running) != CURLM_OK) return CURLE_FAILED_INIT;
      if (running) curl_multi_poll(multi, nullptr, 0, kCancellationPollMs, nullptr);
    }
    int left = 0;
    const CURLMsg* message = curl_multi_info_read(multi, &left);
    return message ? message->data.result : CURLE_FAILED_INIT;
  }

  static std::size_t append(char* data, std::size_t size, std::size_t count, void* body) {
    static_cast<std::string*>(body)->append(data, size * count);
    return size * count;
  }

  static std::size_t read_header(char* data, std::size_t size, std::size_t count, void* retry_after) {
    const std::string line(data, size * count);
    const auto colon = line.find(':');
    std::string name = line.substr(0, colon);
    for (char& one : name) one = static_cast<char>(std::tolower(static_cast<unsigned char>(one)));
    if (name == "retry-after") *static_cast<std::string*>(retry_after) = line.substr(colon + 1);
    return size * count;
  }
};

}  // namespace hosting
