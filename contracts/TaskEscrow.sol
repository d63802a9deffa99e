// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {ITaskEscrow} from "./ITaskEscrow.sol";

/// @title Escrow for the tasks of a swarm
/// @dev Solvency: the contract's ether equals the free balances, plus the rewards of open tasks, plus the collateral
/// of all channels (more where ether was forced in). Effects come before interactions for each item of a batch.
/// State that another party can change in a race is skipped in batches; what the caller controls reverts them.
contract TaskEscrow is ITaskEscrow, EIP712, ReentrancyGuardTransient {
    /// @dev What a payee gets to run on. A third party can't lower it: see `_push`.
    uint256 private constant PUSH_GAS = 30_000;

    /// @dev Left after a push: the credit of a payee that took nothing (a new slot, an event), and the loop's end.
    uint256 private constant PUSH_RESERVE = 45_000;

    bytes32 private constant VOUCHER_TYPEHASH =
        keccak256("Voucher(address requester,address worker,uint96 cumulative,bytes32 tasksRoot)");

    /// @inheritdoc ITaskEscrow
    uint40 public immutable EXIT_DELAY;

    mapping(address account => uint256) private _balances;
    mapping(address requester => mapping(bytes32 taskId => Task)) private _tasks;
    mapping(address requester => mapping(address worker => Channel)) private _channels;

    /// @param exitDelay How long a worker has to redeem after an exit began, in seconds; 1 minute to 30 days.
    constructor(uint40 exitDelay) EIP712("TaskEscrow", "1") {
        if (exitDelay < 1 minutes || exitDelay > 30 days) revert BadExitDelay(exitDelay);
        EXIT_DELAY = exitDelay;
    }

    /// @inheritdoc ITaskEscrow
    function deposit() external payable nonReentrant {
        if (msg.value == 0) revert ZeroAmount();
        _balances[msg.sender] += msg.value;
        emit Deposited(msg.sender, msg.value);
    }

    /// @inheritdoc ITaskEscrow
    function withdraw(address to, uint256 amount) external nonReentrant {
        if (to == address(0)) revert ZeroAddress();
        if (amount == 0) revert ZeroAmount();
        _debit(amount);
        emit Withdrawn(msg.sender, to, amount);
        bool taken = _call(to, amount, gasleft());
        if (!taken) revert WithdrawFailed(to);
    }

    /// @inheritdoc ITaskEscrow
    function create(bytes32 taskId, uint96 reward, uint40 deadline) external payable nonReentrant {
        _take(reward);
        _create(taskId, reward, deadline);
    }

    /// @inheritdoc ITaskEscrow
    function createBatch(bytes32[] calldata ids, uint96 reward, uint40 deadline) external payable nonReentrant {
        if (ids.length == 0) revert ZeroAmount();
        _take(ids.length * uint256(reward));
        for (uint256 i = 0; i < ids.length; ++i) {
            _create(ids[i], reward, deadline);
        }
    }

    /// @inheritdoc ITaskEscrow
    function complete(bytes32 taskId, address assignee, bytes32 output, bool success) external nonReentrant {
        uint96 reward = _close(taskId, assignee, output, success);
        if (success) _push(assignee, reward);
        else _balances[msg.sender] += reward;
    }

    /// @inheritdoc ITaskEscrow
    function completeBatch(Completion[] calldata completions) external nonReentrant {
        uint256 refunded = 0;
        uint256 owed = 0;
        address payee = address(0);
        for (uint256 i = 0; i < completions.length; ++i) {
            Completion calldata item = completions[i];
            uint96 reward = _close(item.taskId, item.assignee, item.output, item.success);
            if (!item.success) {
                refunded += reward;
                continue;
            }
            if (item.assignee != payee) {
                if (owed != 0) _push(payee, owed);
                payee = item.assignee;
                owed = 0;
            }
            owed += reward;
        }
        if (refunded != 0) _balances[msg.sender] += refunded;
        if (owed != 0) _push(payee, owed);
    }

    /// @inheritdoc ITaskEscrow
    function refund(bytes32[] calldata ids) external nonReentrant {
        uint256 refunded = 0;
        for (uint256 i = 0; i < ids.length; ++i) {
            Task storage task = _open(ids[i]);
            if (block.timestamp <= task.deadline) revert DeadlineNotPassed(ids[i], task.deadline);
            task.state = TaskState.Refunded;
            refunded += task.reward;
            emit TaskRefunded(msg.sender, ids[i], task.reward);
        }
        _balances[msg.sender] += refunded;
    }

    /// @inheritdoc ITaskEscrow
    function fund(Funding[] calldata fundings) external payable nonReentrant {
        if (fundings.length == 0) revert ZeroAmount();
        uint256 total = 0;
        for (uint256 i = 0; i < fundings.length; ++i) {
            Funding calldata item = fundings[i];
            if (item.worker == address(0)) revert ZeroAddress();
            if (item.amount == 0) revert ZeroAmount();
            total += item.amount;
            Channel storage channel = _channels[msg.sender][item.worker];
            channel.locked += item.amount;
            channel.exitAt = 0;
            emit ChannelFunded(msg.sender, item.worker, item.amount);
        }
        _take(total);
    }

    /// @inheritdoc ITaskEscrow
    function redeem(Voucher calldata voucher) external nonReentrant {
        _checkSigner(voucher);
        uint96 due = _advance(voucher.requester, voucher.worker, voucher.cumulative, voucher.tasksRoot);
        if (due == 0) revert NothingDue(voucher.requester, voucher.worker);
    }

    /// @inheritdoc ITaskEscrow
    function redeemBatch(Voucher[] calldata vouchers) external nonReentrant {
        for (uint256 i = 0; i < vouchers.length; ++i) {
            Voucher calldata item = vouchers[i];
            _checkSigner(item);
            _advance(item.requester, item.worker, item.cumulative, item.tasksRoot);
        }
    }

    /// @inheritdoc ITaskEscrow
    function settleBatch(Settlement[] calldata settlements) external nonReentrant {
        for (uint256 i = 0; i < settlements.length; ++i) {
            Settlement calldata item = settlements[i];
            _advance(msg.sender, item.worker, item.cumulative, item.tasksRoot);
        }
    }

    /// @inheritdoc ITaskEscrow
    function startExit(address[] calldata workers) external nonReentrant {
        uint40 exitAt = uint40(block.timestamp) + EXIT_DELAY;
        for (uint256 i = 0; i < workers.length; ++i) {
            Channel storage channel = _channels[msg.sender][workers[i]];
            if (channel.exitAt != 0 || channel.locked == 0) continue;
            channel.exitAt = exitAt;
            emit ExitStarted(msg.sender, workers[i], exitAt);
        }
    }

    /// @inheritdoc ITaskEscrow
    function finishExit(address[] calldata workers) external nonReentrant {
        uint256 returned = 0;
        for (uint256 i = 0; i < workers.length; ++i) {
            Channel storage channel = _channels[msg.sender][workers[i]];
            if (channel.locked == 0) continue;
            if (channel.exitAt == 0 || block.timestamp < channel.exitAt) {
                revert ExitNotReady(workers[i], channel.exitAt);
            }
            returned += _return(msg.sender, workers[i], channel);
        }
        _balances[msg.sender] += returned;
    }

    /// @inheritdoc ITaskEscrow
    function release(address requester) external nonReentrant {
        Channel storage channel = _channels[requester][msg.sender];
        if (channel.locked == 0) revert NothingLocked(requester, msg.sender);
        _balances[requester] += _return(requester, msg.sender, channel);
    }

    /// @inheritdoc ITaskEscrow
    function balanceOf(address account) external view returns (uint256) {
        return _balances[account];
    }

    /// @inheritdoc ITaskEscrow
    function taskOf(address requester, bytes32 taskId) external view returns (Task memory) {
        return _tasks[requester][taskId];
    }

    /// @inheritdoc ITaskEscrow
    function channelOf(address requester, address worker) external view returns (Channel memory) {
        return _channels[requester][worker];
    }

    /// @inheritdoc ITaskEscrow
    function voucherDigest(address requester, address worker, uint96 cumulative, bytes32 tasksRoot)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(keccak256(abi.encode(VOUCHER_TYPEHASH, requester, worker, cumulative, tasksRoot)));
    }

    function _create(bytes32 taskId, uint96 reward, uint40 deadline) private {
        if (reward == 0) revert ZeroAmount();
        if (deadline <= block.timestamp) revert DeadlinePassed(deadline);
        Task storage task = _tasks[msg.sender][taskId];
        if (task.state != TaskState.None) revert TaskExists(taskId);
        task.reward = reward;
        task.deadline = deadline;
        task.state = TaskState.Open;
        emit TaskCreated(msg.sender, taskId, reward, deadline);
    }

    function _open(bytes32 taskId) private view returns (Task storage task) {
        task = _tasks[msg.sender][taskId];
        if (task.state != TaskState.Open) revert TaskNotOpen(taskId);
    }

    /// @dev Record the verdict; the caller moves the money.
    function _close(bytes32 taskId, address assignee, bytes32 output, bool success) private returns (uint96 reward) {
        Task storage task = _open(taskId);
        reward = task.reward;
        if (success) {
            if (assignee == address(0)) revert ZeroAddress();
            task.state = TaskState.Paid;
            emit TaskCompleted(msg.sender, taskId, assignee, reward, output);
        } else {
            task.state = TaskState.Failed;
            emit TaskFailed(msg.sender, taskId, assignee, reward, output);
        }
    }

    function _checkSigner(Voucher calldata voucher) private view {
        bytes32 digest = voucherDigest(voucher.requester, voucher.worker, voucher.cumulative, voucher.tasksRoot);
        address recovered = ECDSA.recover(digest, voucher.r, voucher.vs);
        if (recovered != voucher.requester) revert WrongSigner(recovered, voucher.requester);
    }

    /// @dev Pay what is due up to `cumulative`, as far as the collateral goes. Returns 0 where nothing is due.
    function _advance(address requester, address worker, uint96 cumulative, bytes32 tasksRoot)
        private
        returns (uint96 due)
    {
        Channel storage channel = _channels[requester][worker];
        uint96 settled = channel.settled;
        uint96 locked = channel.locked;
        if (cumulative <= settled || locked == 0) return 0;
        due = cumulative - settled;
        if (due > locked) due = locked;
        channel.locked = locked - due;
        channel.settled = settled + due;
        emit ChannelSettled(requester, worker, due, settled + due, cumulative, tasksRoot);
        _push(worker, due);
    }

    /// @dev Empty a channel; the caller credits the requester. `settled` stays: an old voucher never pays twice.
    function _return(address requester, address worker, Channel storage channel) private returns (uint96 returned) {
        returned = channel.locked;
        channel.locked = 0;
        channel.exitAt = 0;
        emit ChannelClosed(requester, worker, returned);
    }

    /// @dev Cover `total` by the value sent, and what is missing by the caller's free balance. The value counts as
    /// deposited and spent at once, so that balances can be rebuilt from the events alone.
    function _take(uint256 total) private {
        if (msg.value > total) revert ExcessValue(msg.value, total);
        if (msg.value != 0) emit Deposited(msg.sender, msg.value);
        if (msg.value < total) _debit(total - msg.value);
    }

    function _debit(uint256 amount) private {
        uint256 available = _balances[msg.sender];
        if (available < amount) revert InsufficientBalance(available, amount);
        _balances[msg.sender] = available - amount;
    }

    /// @dev Pay, or credit where the payee doesn't take it. The gas check keeps a third party from starving the payee
    /// by a low gas limit and so diverting the payment to credit: with it, the EVM's 63/64 rule leaves `PUSH_GAS`.
    function _push(address to, uint256 amount) private {
        if (gasleft() < PUSH_GAS + PUSH_GAS / 32 + PUSH_RESERVE) revert PushGasTooLow();
        if (!_call(to, amount, PUSH_GAS)) {
            _balances[to] += amount;
            emit PushFailed(to, amount);
        }
    }

    /// @dev Send ether and copy no return data, so that a payee can't make the copy dear.
    function _call(address to, uint256 amount, uint256 gasLimit) private returns (bool taken) {
        assembly ("memory-safe") {
            taken := call(gasLimit, to, amount, 0, 0, 0, 0)
        }
    }
}
