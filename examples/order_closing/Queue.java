// How Java speaks to the gateway: JSON over HTTP, with the HttpClient of the JDK.

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

final class Queue {
    private static final String BASE = System.getenv().getOrDefault("QUEUE", "http://127.0.0.1:7070");
    private static final String TOKEN = System.getenv("QUEUE_TOKEN");
    private static final HttpClient CLIENT = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(5))
            .build();

    /** Sends a request and returns the JSON text of the answer. Throws if the gateway refuses, with what it says. */
    static String ask(String method, String path, String json) throws IOException, InterruptedException {
        var body = json == null
                ? HttpRequest.BodyPublishers.noBody()
                : HttpRequest.BodyPublishers.ofString(json);
        var request = HttpRequest.newBuilder(URI.create(BASE + path))
                .method(method, body)
                .header("content-type", "application/json")
                .timeout(Duration.ofSeconds(30)); // longer than a long poll
        if (TOKEN != null) {
            request.header("authorization", "Bearer " + TOKEN);
        }
        var answer = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 400) {
            throw new IOException(method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }
}
