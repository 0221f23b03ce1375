package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commit tells the group up to where everything has landed, also when the subscriber is about to end.
func commit(ctx context.Context, client *kgo.Client, landed offsets) (err error) {
	if len(landed) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	client.CommitOffsetsSync(ctx, landed, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, failed error) {
		if err = failed; err != nil {
			return
		}
		for _, topic := range answer.Topics {
			for _, partition := range topic.Partitions {
				if refused := kerr.ErrorForCode(partition.ErrorCode); refused != nil {
					err = refused
				}
			}
		}
	})
	return classify(err)
}
