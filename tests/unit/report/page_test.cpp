#include "tools/report/page.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tools/report/metrics_reader.h"

namespace page_test {

using namespace lockstep;
using namespace lockstep::tools;

namespace {

constexpr const char* kHostile = "</td></title><script>alert(1)</script><img src=x onerror=alert(2)>\\\"'\\u202e";

std::string epoch(int number, double loss) {
  return "{\"epoch\":" + std::to_string(number) + ",\"train_loss\":" + std::to_string(loss) +
         ",\"val_accuracy\":0.5,\"samples_per_second\":1000,\"world_size\":4}\n";
}

std::string steps(int step, int ranks) {
  std::string line = "{\"kind\":\"steps\",\"step\":" + std::to_string(step) +
                     ",\"steps\":50,\"world_size\":" + std::to_string(ranks) + ",\"ranks\":[";
  for (int rank = 0; rank < ranks; ++rank) {
    line += std::string(rank == 0 ? "" : ",") + "{\"rank\":" + std::to_string(rank) +
            ",\"data_s\":0.0031234,\"forward_s\":0.0101234,\"backward_s\":0.0201234,\"waiting_s\":0.0011234,"
            "\"communicating_s\":0.0021234,\"step_s\":0.0391234,\"hidden_s\":0.0041234,\"late_s\":0.00" +
            std::to_string(rank % 10) + "1}";
  }
  return line + "],\"straggler\":" + std::to_string(ranks - 1) + "}\n";
}

RunRecord run_of(const std::string& text, const std::string& name = "a") {
  RunRecord run = parse_metrics(text);
  run.name = name;
  run.path = "/runs/" + name;
  return run;
}

std::string whole_run() {
  std::string text =
      R"({"kind":"run","command":["./train","--name","a b"],"host":"n1","started":"2026-11-25T18:40:21Z",)"
      R"("threads":2,"versions":{"lockstep":"0.1.0","torch":"2.13.0"}})"
      "\n";
  for (int i = 0; i < 10; ++i) {
    for (int line = 1; line <= 10; ++line) text += steps(i * 500 + line * 50, 4);
    text += epoch(i, 1.0 / (i + 1));
    text += "{\"kind\":\"checkpoint\",\"step\":" + std::to_string(i * 500 + 500) + ",\"path\":\"out/step-" +
            std::to_string(i) + ".safetensors\",\"seconds\":0.25}\n";
  }
  return text +
         R"({"kind":"restart","attempt":1,"reason":"rank 2 was killed by SIGKILL","at":"2026-11-25T19:00:00Z"})" + "\n";
}

bool has(const std::string& page, const std::string& part) { return page.find(part) != std::string::npos; }

// Every opened element is closed, in order.
bool is_balanced(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) return false;
    const bool is_end = page[at + 1] == '/';
    const std::size_t begin = at + (is_end ? 2 : 1);
    const std::string name = page.substr(begin, page.find_first_of(" />", begin) - begin);
    if (page[begin] == '!' || page[end - 1] == '/' || name == "meta") continue;
    if (!is_end) {
      open.push_back(name);
    } else {
      if (open.empty() || open.back() != name) return false;
      open.pop_back();
    }
  }
  return open.empty();
}

void check_is_safe(const std::string& page) {
  CHECK_FALSE(has(page, "<script"));
  CHECK_FALSE(has(page, "<img"));
  CHECK_FALSE(has(page, "style="));
  CHECK_FALSE(has(page, "href"));
  CHECK_FALSE(has(page, "url("));
  CHECK_FALSE(has(page, "@import"));
  CHECK_FALSE(has(page, "http://"));
  CHECK_FALSE(has(page, "https://"));
  CHECK_FALSE(has(page, "\xe2\x80\xae"));
  CHECK(has(page, "content=\"default-src 'none'; style-src 'sha256-"));
  CHECK(is_balanced(page));
}

}  // namespace

TEST_CASE("a run with everything has all charts, and nothing is left out") {
  const std::string page = report_page({run_of(whole_run())}, "made");
  check_is_safe(page);
  for (const std::string title : {"Loss", "Accuracy", "Throughput, per second", "Mean time of a step by rank",
                                  "Time of a step, ms", "Lateness by rank"}) {
    CAPTURE(title);
    CHECK(has(page, "<figcaption>" + title + "</figcaption>"));
  }
  CHECK(has(page, "<figcaption>Communication hidden behind backward"));
  for (const std::string part :
       {"rank 2 was killed by SIGKILL", "./train --name &#39;a b&#39;", "version of torch", "2.13.0", "n1",
        "step-9.safetensors", "removed", "rank 3, in 100 of 100 lines", "66.0 %"}) {
    CAPTURE(part);
    CHECK(has(page, part));
  }
  CHECK_FALSE(has(page, "Left out"));
  CHECK(page.size() < 1'000'000);
}

TEST_CASE("what a run does not have is left out, with a line that says so") {
  const std::string page = report_page({run_of("")}, "made");
  check_is_safe(page);
  CHECK_FALSE(has(page, "<figure"));
  for (const std::string line : {"Left out: metrics.jsonl has no line of an epoch",
                                 "Left out: time of a step, lateness", "Left out: starts and restarts",
                                 "Left out: there are no checkpoints", "Left out: host, versions and command line"}) {
    CAPTURE(line);
    CHECK(has(page, line));
  }
  const std::string bare = report_page({run_of("{\"epoch\":0,\"train_loss\":1}\n")}, "made");
  CHECK(has(bare, "Left out: accuracy; no epoch has a metric for it, such as val_accuracy."));
  CHECK(has(bare, "Left out: throughput; no epoch has a metric for it, such as samples_per_second."));
  CHECK_FALSE(has(bare, "Left out: loss"));
}

TEST_CASE("several runs are side by side, and what one of them lacks is said of that one") {
  const std::string page = report_page({run_of(whole_run(), "a"), run_of(epoch(0, 0.5) + epoch(1, 0.25), "b")}, "made");
  check_is_safe(page);
  CHECK(has(page, "<th scope=\"col\">a</th><th scope=\"col\">b</th>"));
  CHECK(has(page, "a: train_loss"));
  CHECK(has(page, "b: train_loss"));
  CHECK(has(page, "Left out for b: time of a step"));
  CHECK_FALSE(has(page, "Left out for a"));
}

TEST_CASE("a share is in percent in charts and tables") {
  const RunRecord run = run_of("{\"epoch\":0,\"hidden_share\":0.25}\n{\"epoch\":1,\"hidden_share\":0.75}\n");
  const std::string page = report_page({run}, "now");
  CHECK(has(page, "hidden_share, %"));
  CHECK(has(page, ">25.0 %<"));
  CHECK(has(page, "75.0 % (highest 75.0 %, epoch 2)"));
  CHECK_FALSE(has(page, ">0.25<"));
}

TEST_CASE("restarts and changes of the number of ranks are told") {
  const RunRecord run =
      run_of(steps(50, 4) + steps(100, 3) + R"({"kind":"run","started":"t1"})" + "\n" +
             R"({"kind":"restart","attempt":1,"reason":"why"})" + "\n" + R"({"kind":"run","started":"t2"})" + "\n");
  const std::string page = report_page({run}, "made");
  CHECK(has(page, "4, then 3"));
  const std::size_t first = page.find("<td>started</td>"),
                    restart = page.find("<td>restart, attempt 1</td><td>why</td>"),
                    again = page.find("<td>started again</td>");
  CHECK(first < restart);
  CHECK(restart < again);
  CHECK(again != std::string::npos);
}

TEST_CASE("hostile texts are shown, and do nothing") {
  const std::string hostile = kHostile;
  std::string text = "{\"epoch\":0,\"" + hostile + "\":1,\"" + hostile + "_loss\":2}\n";
  text += "{\"kind\":\"run\",\"command\":[\"" + hostile + "\"],\"host\":\"" + hostile + "\",\"started\":\"" + hostile +
          "\",\"threads\":\"" + hostile + "\",\"versions\":{\"" + hostile + "\":\"" + hostile + "\"}}\n";
  text += "{\"kind\":\"restart\",\"attempt\":\"" + hostile + "\",\"reason\":\"" + hostile + "\",\"at\":\"" + hostile +
          "\"}\n{\"kind\":\"checkpoint\",\"step\":1,\"path\":\"" + hostile + "\"}\n<script>\n" + steps(50, 2);
  RunRecord run = run_of(text, "<script>n");
  run.checkpoints.push_back({.name = "<script>c", .kind = "<script>k", .damage = "<script>d"});
  run.settings["<script>s"] = "<script>v";
  CHECK(run.damaged_count == 1);
  const std::string page = report_page({run, run_of(text, "<script>m")}, "<script>");
  check_is_safe(page);
  CHECK(has(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
}

TEST_CASE("damaged lines are counted and named") {
  const std::string page = report_page({run_of(epoch(0, 1) + "x\n")}, "made");
  CHECK(has(page, "1 line of /runs/a/metrics.jsonl cannot be read and is left out:"));
  CHECK(has(page, "a/metrics.jsonl:2"));
}

TEST_CASE("extreme numbers and many ranks, epochs, metrics and events keep the page small and whole") {
  std::string text =
      "{\"epoch\":0,\"train_loss\":1e308,\"val_loss\":-1e308}\n{\"epoch\":1,\"train_loss\":1e-308}\n"
      "{\"kind\":\"steps\",\"step\":1,\"ranks\":[{\"rank\":0,\"step_s\":1e308,\"data_s\":1e308}]}\n";
  for (int i = 2; i < 3000; ++i) text += epoch(i, i);
  for (int i = 0; i < 100; ++i)
    text += "{\"epoch\":" + std::to_string(3000 + i) + ",\"m" + std::to_string(i) + "\":1}\n";
  for (int i = 1; i < 500; ++i) text += "{\"kind\":\"restart\",\"attempt\":" + std::to_string(i) + "}\n";
  for (int i = 1; i < 40; ++i) text += steps(i * 50, 500);
  text += "{\"kind\":\"restart\",\"reason\":\"" + std::string(500'000, '<') + "\"}\n";
  const std::string page = report_page({run_of(text)}, "made");
  check_is_safe(page);
  CHECK(page.size() < 1'000'000);
  CHECK(has(page, "The 32 latest of 500 ranks"));
  CHECK(has(page, "slowest rank"));
  CHECK(has(page, "earlier events are not shown"));
  CHECK_FALSE(has(page, "\"inf"));
  CHECK_FALSE(has(page, "nan"));
}

}  // namespace page_test
