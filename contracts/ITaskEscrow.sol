// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Escrow for the tasks of a swarm
/// @notice Two ways to pay a worker. Path A holds a reward per task and pays it on the requester's public verdict.
/// Path B locks collateral per worker, against which the requester signs cumulative vouchers off chain.
/// @dev ETH only; no owner, no pause, no upgrade. Everything is scoped by requester, so nobody can squat an id or
/// touch another requester's money. Path A trusts the requester's verdict: a chain can't know whether a page was
/// scraped. Path B gives the worker money that the requester can't take back before `EXIT_DELAY` has passed.
interface ITaskEscrow {
    /// @notice Where a task of path A is. Any state but `None` is a tombstone: an id is never used twice.
    enum TaskState {
        None,
        Open,
        Paid,
        Failed,
        Refunded
    }

    /// @notice A task of path A; one storage slot.
    /// @param reward What is held for it, in wei.
    /// @param deadline Unix time after which the requester may take the reward back.
    /// @param state Where it is.
    struct Task {
        uint96 reward;
        uint40 deadline;
        TaskState state;
    }

    /// @notice A channel of path B, from a requester to a worker; one storage slot.
    /// @param locked Collateral held now, in wei.
    /// @param settled What was ever paid through it, in wei; it only grows.
    /// @param exitAt Unix time from which the requester may take the collateral back; 0 while the channel is open.
    struct Channel {
        uint96 locked;
        uint96 settled;
        uint40 exitAt;
    }

    /// @notice The verdict on one task.
    /// @param taskId The task.
    /// @param assignee Whom to pay; may be zero where `success` is false.
    /// @param output The sha2-256 digest of the result.
    /// @param success Whether the reward is the assignee's; else it returns to the requester's balance.
    struct Completion {
        bytes32 taskId;
        address assignee;
        bytes32 output;
        bool success;
    }

    /// @notice Collateral to add for a worker.
    /// @param worker Whose channel.
    /// @param amount How much, in wei.
    struct Funding {
        address worker;
        uint96 amount;
    }

    /// @notice A requester's promise: all that it ever owed to a worker, signed (EIP-712, compact per EIP-2098).
    /// @param requester Who signed and pays.
    /// @param worker Who is paid.
    /// @param cumulative All wei ever owed; it is its own nonce.
    /// @param tasksRoot The hash chain over the tasks paid for; opaque to the contract, emitted for audit.
    /// @param r The signature's r.
    /// @param vs The signature's s, with the parity in its top bit.
    struct Voucher {
        address requester;
        address worker;
        uint96 cumulative;
        bytes32 tasksRoot;
        bytes32 r;
        bytes32 vs;
    }

    /// @notice A voucher that the requester redeems itself, so that it needs no signature.
    /// @param worker Who is paid.
    /// @param cumulative All wei ever owed.
    /// @param tasksRoot The hash chain over the tasks paid for.
    struct Settlement {
        address worker;
        uint96 cumulative;
        bytes32 tasksRoot;
    }

    /// @notice Money was added to a free balance by its owner, be it by value sent along with a call that spends.
    /// @dev With this a balance is, from events alone: deposited, credited by a failed push, refunded by failed and
    /// refunded tasks and closed channels; less withdrawn, less the rewards of created tasks, less channel fundings.
    /// @param account Whose balance.
    /// @param amount How much, in wei.
    event Deposited(address indexed account, uint256 amount);

    /// @notice Money left a free balance.
    /// @param account Whose balance.
    /// @param to Where it went.
    /// @param amount How much, in wei.
    event Withdrawn(address indexed account, address indexed to, uint256 amount);

    /// @notice A payee didn't take a payment; it was credited to its balance instead.
    /// @param account The payee.
    /// @param amount How much, in wei.
    event PushFailed(address indexed account, uint256 amount);

    /// @notice A task was funded.
    /// @param requester Whose task.
    /// @param taskId Its id.
    /// @param reward What is held, in wei.
    /// @param deadline When the requester may take it back.
    event TaskCreated(address indexed requester, bytes32 indexed taskId, uint96 reward, uint40 deadline);

    /// @notice A task was completed and paid.
    /// @param requester Whose task.
    /// @param taskId Its id.
    /// @param assignee Who was paid.
    /// @param paid How much, in wei.
    /// @param output The sha2-256 digest of the result.
    event TaskCompleted(
        address indexed requester, bytes32 indexed taskId, address indexed assignee, uint96 paid, bytes32 output
    );

    /// @notice A task failed; its reward returned to the requester's balance.
    /// @param requester Whose task.
    /// @param taskId Its id.
    /// @param assignee Who had tried, or zero.
    /// @param refunded How much, in wei.
    /// @param output The sha2-256 digest of what there was.
    event TaskFailed(
        address indexed requester, bytes32 indexed taskId, address indexed assignee, uint96 refunded, bytes32 output
    );

    /// @notice A task's deadline passed and its reward returned to the requester's balance.
    /// @param requester Whose task.
    /// @param taskId Its id.
    /// @param refunded How much, in wei.
    event TaskRefunded(address indexed requester, bytes32 indexed taskId, uint96 refunded);

    /// @notice Collateral was added to a channel, which is open (again).
    /// @param requester Whose collateral.
    /// @param worker For whom.
    /// @param amount How much, in wei.
    event ChannelFunded(address indexed requester, address indexed worker, uint96 amount);

    /// @notice A channel paid.
    /// @param requester Who paid.
    /// @param worker Who was paid.
    /// @param paid How much now, in wei.
    /// @param settled How much ever, in wei.
    /// @param cumulative What the voucher promised; more than `settled` where the collateral was too small.
    /// @param tasksRoot The voucher's hash chain.
    event ChannelSettled(
        address indexed requester,
        address indexed worker,
        uint96 paid,
        uint96 settled,
        uint96 cumulative,
        bytes32 tasksRoot
    );

    /// @notice The requester wants its collateral back; the worker has until `exitAt` to redeem.
    /// @param requester Whose collateral.
    /// @param worker Whose channel.
    /// @param exitAt Unix time from which the collateral can be taken.
    event ExitStarted(address indexed requester, address indexed worker, uint40 exitAt);

    /// @notice Collateral returned to the requester's balance, by an exit or by the worker's release.
    /// @param requester Whose collateral.
    /// @param worker Whose channel.
    /// @param returned How much, in wei.
    event ChannelClosed(address indexed requester, address indexed worker, uint96 returned);

    /// @notice An amount of nothing.
    error ZeroAmount();
    /// @notice No address where one is needed.
    error ZeroAddress();
    /// @notice More ether was sent than the call takes.
    /// @param sent What was sent, in wei.
    /// @param needed What the call takes, in wei.
    error ExcessValue(uint256 sent, uint256 needed);
    /// @notice The caller's free balance is too small.
    /// @param available What there is, in wei.
    /// @param needed What it takes, in wei.
    error InsufficientBalance(uint256 available, uint256 needed);
    /// @notice The caller has used this id already.
    /// @param id The task's id.
    error TaskExists(bytes32 id);
    /// @notice The task isn't open.
    /// @param id The task's id.
    error TaskNotOpen(bytes32 id);
    /// @notice The deadline isn't in the future.
    /// @param deadline The deadline given.
    error DeadlinePassed(uint40 deadline);
    /// @notice The deadline hasn't passed yet.
    /// @param id The task's id.
    /// @param deadline Its deadline.
    error DeadlineNotPassed(bytes32 id, uint40 deadline);
    /// @notice The voucher isn't signed by its requester.
    /// @param recovered Who signed.
    /// @param requester Who should have.
    error WrongSigner(address recovered, address requester);
    /// @notice The voucher brings nothing: it was redeemed already, or nothing is locked.
    /// @param requester Who pays.
    /// @param worker Who is paid.
    error NothingDue(address requester, address worker);
    /// @notice The channel holds no collateral.
    /// @param requester Whose channel.
    /// @param worker For whom.
    error NothingLocked(address requester, address worker);
    /// @notice The exit wasn't started, or its delay isn't over.
    /// @param worker Whose channel.
    /// @param exitAt When it can be finished; 0 where it wasn't started.
    error ExitNotReady(address worker, uint40 exitAt);
    /// @notice Too little gas to give the payee its full stipend.
    error PushGasTooLow();
    /// @notice The receiver didn't take the withdrawal.
    /// @param to The receiver.
    error WithdrawFailed(address to);
    /// @notice The exit delay is outside 1 minute to 30 days.
    /// @param exitDelay The delay given, in seconds.
    error BadExitDelay(uint40 exitDelay);

    /// @notice Add ether to the caller's free balance.
    function deposit() external payable;

    /// @notice Take money out of the caller's free balance.
    /// @param to Who receives it; need not be the caller, so that a contract that rejects ether can still collect.
    /// @param amount How much, in wei.
    function withdraw(address to, uint256 amount) external;

    /// @notice Fund a task.
    /// @dev What the value sent doesn't cover is taken from the caller's free balance.
    /// @param taskId An id that the caller never used.
    /// @param reward What is held, in wei.
    /// @param deadline Unix time after which the caller may take it back.
    function create(bytes32 taskId, uint96 reward, uint40 deadline) external payable;

    /// @notice Fund tasks of one reward and one deadline.
    /// @param ids Ids that the caller never used.
    /// @param reward What is held for each, in wei.
    /// @param deadline Unix time after which the caller may take them back.
    function createBatch(bytes32[] calldata ids, uint96 reward, uint40 deadline) external payable;

    /// @notice Give the verdict on an open task; allowed after its deadline too.
    /// @param taskId The caller's task.
    /// @param assignee Whom to pay; may be zero where `success` is false.
    /// @param output The sha2-256 digest of the result.
    /// @param success Whether the reward is the assignee's; else it returns to the caller's balance.
    function complete(bytes32 taskId, address assignee, bytes32 output, bool success) external;

    /// @notice Give verdicts; consecutive ones for one assignee become one payment.
    /// @param completions The verdicts, best sorted by assignee.
    function completeBatch(Completion[] calldata completions) external;

    /// @notice Take back the rewards of open tasks whose deadlines have passed.
    /// @param ids The caller's tasks.
    function refund(bytes32[] calldata ids) external;

    /// @notice Lock collateral for workers; an exit under way is called off.
    /// @param fundings For whom, and how much.
    function fund(Funding[] calldata fundings) external payable;

    /// @notice Redeem a voucher. Anyone may send it; only its worker is paid.
    /// @param voucher The voucher.
    function redeem(Voucher calldata voucher) external;

    /// @notice Redeem vouchers, of any requesters. One that brings nothing is skipped; a wrong signature reverts all.
    /// @param vouchers The vouchers.
    function redeemBatch(Voucher[] calldata vouchers) external;

    /// @notice Pay the caller's own workers without signatures, through the same `settled`.
    /// @param settlements Whom, up to which cumulative amount.
    function settleBatch(Settlement[] calldata settlements) external;

    /// @notice Start taking back the collateral of workers. Channels without collateral, or exiting already, are skipped.
    /// @param workers Whose channels.
    function startExit(address[] calldata workers) external;

    /// @notice Take back the collateral of workers after the delay. Channels without collateral are skipped.
    /// @param workers Whose channels.
    function finishExit(address[] calldata workers) external;

    /// @notice As a worker, give a requester its remaining collateral back at once.
    /// @param requester Whose collateral.
    function release(address requester) external;

    /// @notice How long after `startExit` the collateral can be taken, in seconds.
    /// @return The delay.
    function EXIT_DELAY() external view returns (uint40);

    /// @notice What an account can withdraw.
    /// @param account The account.
    /// @return Its free balance, in wei.
    function balanceOf(address account) external view returns (uint256);

    /// @notice A task of path A.
    /// @param requester Whose.
    /// @param taskId Its id.
    /// @return The task; its state is `None` where there is none.
    function taskOf(address requester, bytes32 taskId) external view returns (Task memory);

    /// @notice A channel of path B.
    /// @param requester Who pays.
    /// @param worker Who is paid.
    /// @return The channel.
    function channelOf(address requester, address worker) external view returns (Channel memory);

    /// @notice What a requester signs.
    /// @param requester Who pays.
    /// @param worker Who is paid.
    /// @param cumulative All wei ever owed.
    /// @param tasksRoot The hash chain over the tasks paid for.
    /// @return The EIP-712 digest.
    function voucherDigest(address requester, address worker, uint96 cumulative, bytes32 tasksRoot)
        external
        view
        returns (bytes32);
}
